// The kernels of one instruction set, as plain functions on raw pointers. Every kernel computes a range of work items, so
// that the plan runtime can hand them out in small pieces; no item depends on another of the same call.
#pragma once

#include "linear.h"
#include "packed.h"

#include <vector>

namespace kvist {

enum class KVType : int32_t { f32, f16, bf16 };
enum class Activation : int32_t { silu, gelu_tanh };

struct RowBuffer {  // float rows
    float* data;
    int64_t stride;
};

struct QuantBuffer {  // where quantized activations go; read back as QuantizedRows
    int8_t* q;
    float* scale;
    float* scaled_sum;
    int32_t* sum16;
    int64_t k;
};

// One request's part of a step. Token i of it (0 <= i < num_tokens) stands at position start + i and in batch row
// first_row + i.
struct StepRow {
    int32_t start;
    int32_t num_tokens;
    int32_t first_row;
    const int32_t* block_table;
};

// KV bytes: [block][layer][K or V][head]; K of a head is [head_dim][block_size], V is [block_size][head_dim].
struct KVLayout {
    uint8_t* base;
    int64_t block_bytes;
    int64_t k_offset;  // of this layer's K inside a block
    int64_t v_offset;
    KVType type;
    int32_t block_size;
    int32_t num_kv_heads;
    int32_t head_dim;
};

struct AttentionArgs {
    KVLayout kv;
    const StepRow* rows;
    RowBuffer q;     // [batch row][q head][head_dim], rotated
    RowBuffer out;   // same shape
    int32_t group;   // query heads per KV head
    int32_t window;  // keys a query sees, itself included; 0: all
    float scale;
    float softcap;    // 0: none
    float* partials;  // workspace for split contexts: see attention_split
};

struct RopeArgs {
    const float* cos_sin;  // [batch row][head_dim / 2] cosines, then as many sines
    int32_t head_dim;
};

struct WeightArgs {  // a token's weight is e^((logit - largest) / temperature), 0 if that is below `least`
    float temperature;
    float least;
};

struct BestLogit {  // the largest of some logits and its index, the lowest on ties; -1 if one is not finite
    float logit;
    int32_t id;
};

constexpr int kSegment = 512;     // keys per softmax segment, at absolute positions
constexpr int kQueryTokens = 16;  // tokens of a row per attention item

struct Kernels {
    const char* name;
    LinearKernel linear;
    // Dense weights [n, k] in f32, f16 or bf16; x are float rows.
    void (*linear_dense)(const PackedMatrix& w, RowBuffer x, RowBuffer y, bool accumulate, int n_begin, int n_end, int rows);
    void (*quantize)(RowBuffer x, QuantBuffer q, int row_begin, int row_end);
    // y = x / rms(x) * w, per row of `width` or per head of `width` within rows; y may be x
    void (*rms_norm)(RowBuffer x, const float* w, float eps, int width, int heads, RowBuffer y, int row_begin, int row_end);
    void (*rms_norm_quantize)(RowBuffer x, const float* w, float eps, QuantBuffer q, int row_begin, int row_end);
    // The same for groups [group_begin, group_end) of each row; a group that is not finite is NaN for itself.
    void (*quantize_groups)(RowBuffer x, QuantBuffer q, int group_begin, int group_end, int row_begin, int row_end);
    // activation(gate) * up, quantized, for groups [group_begin, group_end); gate and up begin at that group of row_begin.
    void (*gated_quantize_groups)(RowBuffer gate, RowBuffer up, Activation kind, QuantBuffer q, int group_begin, int group_end,
                                  int row_begin, int row_end);
    void (*gated)(RowBuffer gate, RowBuffer up, Activation kind, int width, RowBuffer y, int row_begin, int row_end);
    void (*gated_quantize)(RowBuffer gate, RowBuffer up, Activation kind, QuantBuffer q, int row_begin, int row_end);
    void (*rope)(RowBuffer x, const RopeArgs& rope, int heads, int row_begin, int row_end);
    // Writes KV heads [head_begin, head_end) of tokens [token_begin, token_end).
    void (*write_kv)(const KVLayout& kv, const StepRow& row, RowBuffer k, RowBuffer v, int head_begin, int head_end,
                     int token_begin, int token_end);
    // Attends tokens [token_begin, token_end) of `row` for one KV head over all their segments.
    void (*attention)(const AttentionArgs& a, int row, int kv_head, int token_begin, int token_end);
    // One segment of the same, its result left in `partial`; attention_merge adds them up left to right, same bits.
    void (*attention_segment)(const AttentionArgs& a, int row, int kv_head, int token_begin, int token_end, int segment,
                              float* partial);
    void (*attention_merge)(const AttentionArgs& a, int row, int kv_head, int token_begin, int token_end, const float* partials,
                            int64_t partial_floats, int num_segments);
    void (*embed)(const PackedMatrix& table, const int32_t* token_ids, float scale, RowBuffer x, int row_begin, int row_end);
    void (*add)(RowBuffer x, RowBuffer y, int width, int row_begin, int row_end);  // x += y
    bool (*is_finite)(const float* x, int64_t width);
    // logits = cap * tanh(logits / cap)
    void (*softcap)(float* logits, int n, float cap);
    BestLogit (*best_logit)(const float* logits, int n);
    // Of logits that are no NaN and at most `largest`, which is finite. The sum of all weights; a draw: the first id at which the
    // running sum exceeds u of the total, for u in [0, 1).
    double (*weight_sum)(const float* logits, int n, float largest, const WeightArgs& a);
    int32_t (*draw)(const float* logits, int n, float largest, const WeightArgs& a, double u);
    // Ids of the `count` <= n largest, the largest first, of equals the lowest first.
    void (*top_logits)(const float* logits, int n, int count, int32_t* ids);
};

// Floats of a partial for `num_queries` queries: maximum, sum and weighted values of each.
inline int64_t partial_floats(int num_queries, int head_dim) { return int64_t{num_queries} * (2 + head_dim); }

// Kernels by name ("portable", "avx2", "avx512", "amx"); null where this build or this processor lacks them.
const Kernels* find_kernels(const char* name);
// Names of those that this build has and this processor runs, the widest first; the last is "portable".
std::vector<const char*> kernel_names();
// The widest that this processor runs.
const Kernels& best_kernels();

}  // namespace kvist
