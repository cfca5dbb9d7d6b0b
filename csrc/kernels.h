// The kernels of one instruction set, as plain functions on raw pointers. Every kernel computes a range of work items, so
// that the plan runtime can hand them out in small pieces; no item depends on another of the same call.
#pragma once

#include "baselines.h"
#include "ceilings.h"
#include "linear.h"
#include "packed.h"

#include <vector>

namespace kvist {

enum class KVType : int32_t { f32, f16, bf16, int8 };

struct RowBuffer {  // float rows
    float* data;
    int64_t stride;
};

// One request's part of a step. Token i of it (0 <= i < num_tokens) stands at position start + i and in batch row
// first_row + i.
struct StepRow {
    int32_t start;
    int32_t num_tokens;
    int32_t first_row;
    const int32_t* block_table;
};

// KV bytes: [block][layer][K or V][head]; K of a head is [head_dim][block_size], V is [block_size][head_dim]. bfloat16 numbers lie
// two by two, K as [head_dim / 2][block_size][2] and V as [block_size / 2][head_dim][2], as the matrix unit multiplies them. int8
// numbers lie four by four, K as [head_dim / 4][block_size][4] and V as [block_size / 4][head_dim][4]; a float scale per slot
// follows them.
struct KVLayout {
    uint8_t* base;
    int64_t block_bytes;
    int64_t k_offset;  // of this layer's K inside a block
    int64_t v_offset;
    KVType type;
    int32_t block_size;
    int32_t num_kv_heads;
    int32_t head_dim;

    int64_t head_bytes() const {
        const int bytes = type == KVType::f32 ? 4 * head_dim : type == KVType::int8 ? head_dim + 4 : 2 * head_dim;
        return int64_t{block_size} * bytes;
    }
    // K and V of one head in the block that holds `position` of a row.
    uint8_t* keys(const int32_t* block_table, int position, int head) const {
        return base + block_table[position / block_size] * block_bytes + k_offset + head * head_bytes();
    }
    uint8_t* values(const int32_t* block_table, int position, int head) const {
        return base + block_table[position / block_size] * block_bytes + v_offset + head * head_bytes();
    }
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
    bool is_integer;  // products in integers; keys and values are int8
};

struct TokenRange {  // tokens [begin, end) of a row of the step
    int32_t row, begin, end;
};

// What attention to the first keys of a context has left, for requests that begin with the same blocks: per segment a state of
// each query, those of the caller's tokens first.
struct SharedPrefix {
    const float* states;
    int64_t segment_floats;
    int32_t num_keys;  // a multiple of kSharedKeys; 0: nothing is shared
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

constexpr int kSegment = 512;         // keys per softmax segment, at absolute positions
constexpr int kSharedKeys = 64;       // keys per softmax tile, at absolute positions
constexpr int kQueriesPerItem = 192;  // query vectors that share one pass over keys and values

struct Kernels {
    const char* name;
    bool has_bfloat_activations;  // the form of quantized activations that all these kernels write and read
    LinearKernel linear;
    GatedKernel gated_linear;
    // Dense weights [n, k] in f32, f16 or bf16; x are float rows.
    void (*linear_dense)(const PackedMatrix& w, RowBuffer x, RowBuffer y, bool accumulate, int n_begin, int n_end, int rows);
    void (*quantize)(RowBuffer x, Activations q, int row_begin, int row_end);
    // y = x / rms(x) * w, per row of `width` or per head of `width` within rows; y may be x
    void (*rms_norm)(RowBuffer x, const float* w, float eps, int width, int heads, RowBuffer y, int row_begin, int row_end);
    void (*rms_norm_quantize)(RowBuffer x, const float* w, float eps, Activations q, int row_begin, int row_end);
    // The same for groups [group_begin, group_end) of each row; a group that is not finite is NaN for itself.
    void (*quantize_groups)(RowBuffer x, Activations q, int group_begin, int group_end, int row_begin, int row_end);
    // to_quantize: y is about to be quantized, and gets the activation that `gated_quantize` takes.
    void (*gated)(RowBuffer gate, RowBuffer up, Activation kind, bool to_quantize, int width, RowBuffer y, int row_begin,
                  int row_end);
    void (*gated_quantize)(RowBuffer gate, RowBuffer up, Activation kind, Activations q, int row_begin, int row_end);
    void (*rope)(RowBuffer x, const RopeArgs& rope, int heads, int row_begin, int row_end);
    // Writes KV heads [head_begin, head_end) of tokens [token_begin, token_end).
    void (*write_kv)(const KVLayout& kv, const StepRow& row, RowBuffer k, RowBuffer v, int head_begin, int head_end,
                     int token_begin, int token_end);
    // Attends `tokens` for one KV head, over all keys that they see.
    void (*attention)(const AttentionArgs& a, int kv_head, TokenRange tokens, const SharedPrefix& prefix);
    // The keys of one segment below key_end, for ranges of tokens whose rows hold these keys in the same blocks. Leaves a
    // state per query; attention_merge adds up the states of a range, left to right: same bits as `attention`.
    void (*attention_segment)(const AttentionArgs& a, int kv_head, const TokenRange* tokens, int num_ranges, int segment,
                              int key_end, const SharedPrefix& prefix, float* states);
    void (*attention_merge)(const AttentionArgs& a, int kv_head, TokenRange tokens, const SharedPrefix& prefix,
                            const float* states, int64_t segment_floats, int num_segments);
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
    const Ceilings& (*ceilings)();
    const Baselines& (*baselines)();
};

// Whether `linear` multiplies these weights, with quantized activations; others are `linear_dense`'s. The matrix unit's kernels
// take dense weights of two bytes in whole groups.
inline bool takes_quantized(const Kernels& kernels, const PackedMatrix& w) {
    return !is_dense(w.format) || (kernels.has_bfloat_activations && w.format != Format::f32 && w.k % kGroup == 0);
}

// Floats of the states of `num_queries` queries: the maximum, sixteen partial sums and the weighted values of each.
inline int64_t attention_state_floats(int num_queries, int head_dim) { return int64_t{num_queries} * (32 + head_dim); }

// Kernels by name ("portable", "avx2", "avx512", "amx", or "amx_plain", the arithmetic of amx in plain C++); null where this
// build or this processor lacks them.
const Kernels* find_kernels(const char* name);
// The kernels in plain C++, for any processor, that give the same bits as those called `name`.
const char* plain_twin(const char* name);
// Names of those that this build has and this processor runs, the widest first; the last is "portable".
std::vector<const char*> kernel_names();
// The widest that this processor runs.
const Kernels& best_kernels();

}  // namespace kvist
