// y[row, n] (+)= sum_k x[row, k] * w[n, k] (+ bias[n]) for weights that take quantized activations.
#pragma once

#include "packed.h"

namespace kvist {

enum class Activation : int32_t { silu, gelu_tanh };

struct LinearArgs {
    PackedMatrix w;
    Activations x;
    float* y;
    int64_t y_stride;  // floats between rows
    bool accumulate;   // add to what y holds (residual)
};

// Computes tiles [tile_begin, tile_end) for rows [row_begin, row_end). Each output is a function of its row and its
// weights alone: the same bits for any number of rows.
using LinearKernel = void (*)(const LinearArgs&, int tile_begin, int tile_end, int row_begin, int row_end);

// y = quantized(activation(gate x) * up x)
struct GatedArgs {
    PackedMatrix gate, up;  // as many outputs, in whole groups
    Activations x;
    Activation kind;
    Activations y;
};

// Computes groups [group_begin, group_end) of y, with those words.
using GatedKernel = void (*)(const GatedArgs&, int group_begin, int group_end, int row_begin, int row_end);

}  // namespace kvist
