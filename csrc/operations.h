// The operations a plan is made of. Each says how its work is cut into items; the kernels do the arithmetic.
#pragma once

#include "plan.h"

#include <vector>

namespace kvist {

struct LinearPart {  // one weight of a fused linear: its outputs go to column `column` of the target
    PackedMatrix w;
    int column;
};

std::unique_ptr<Operation> make_embed(Plan& plan, PackedMatrix table, float scale, int out);
std::unique_ptr<Operation> make_rope_angles(Plan& plan, std::vector<double> inverse_frequency, float* cos_sin);
std::unique_ptr<Operation> make_norm(Plan& plan, RowBuffer x, const float* w, float eps, int width, int heads, RowBuffer y);
std::unique_ptr<Operation> make_norm_quantize(Plan& plan, RowBuffer x, const float* w, float eps, int quantized);
std::unique_ptr<Operation> make_quantize(Plan& plan, RowBuffer x, int quantized);
std::unique_ptr<Operation> make_linear(Plan& plan, std::vector<LinearPart> parts, int quantized, int out, bool accumulate);
std::unique_ptr<Operation> make_linear_dense(Plan& plan, PackedMatrix w, RowBuffer x, RowBuffer y, bool accumulate);
std::unique_ptr<Operation> make_gated_quantize(Plan& plan, RowBuffer gate, RowBuffer up, Activation kind, int quantized);
// Quantized rows of activation(gate) * up; gate and up have as many outputs, in whole groups.
std::unique_ptr<Operation> make_gated_linear(Plan& plan, PackedMatrix gate, PackedMatrix up, int quantized, Activation kind,
                                             int out);
std::unique_ptr<Operation> make_gated(Plan& plan, RowBuffer gate, RowBuffer up, Activation kind, bool to_quantize, int width,
                                      RowBuffer y);
std::unique_ptr<Operation> make_add(Plan& plan, RowBuffer x, RowBuffer y, int width);

struct AttentionShape {
    int64_t block_bytes, k_offset, v_offset;
    KVType type;
    int block_size, num_q_heads, num_kv_heads, head_dim;
    int window;
    float scale, softcap;
    const float* cos_sin;
    bool is_integer = false;  // products in integers, over int8 keys and values
    KVLayout layout(uint8_t* base) const {
        return {base, block_bytes, k_offset, v_offset, type, block_size, num_kv_heads, head_dim};
    }
};
struct AttentionRows {  // of the batch; `out` may be where q is; quantized: also gets `out`, where it has a place for it
    RowBuffer q, k, v, out;
    Activations quantized;
};
// Appends what rotates q and k in place, writes k and v to their blocks, and attends: to what requests share, of each request,
// and the merge where a context is split among threads. A KV head's part of `out` must be whole groups if it is to be quantized.
void append_attention(Plan& plan, const AttentionShape& shape, const AttentionRows& rows);
// finite[row] = whether all of the row's `width` numbers are.
std::unique_ptr<Operation> make_check_finite(Plan& plan, RowBuffer x, int width, uint8_t* finite);
// Caps the first n numbers of each row (cap 0: not at all), then best[row] = index of the largest, the lowest on ties; -1 if one
// is not finite.
void append_best_logits(Plan& plan, RowBuffer logits, int n, float cap, int32_t* best);
// The first operation of a head: rows `logit_rows` of x, one after another.
std::unique_ptr<Operation> make_gather(Plan& plan, RowBuffer x, int width, RowBuffer y);

}  // namespace kvist
