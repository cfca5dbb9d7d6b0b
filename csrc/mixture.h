// Mixture of experts as a run of operations; see mixture.cpp.
#pragma once

#include "plan.h"

#include <vector>

namespace kvist {

struct MixtureArgs {
    // [tokens, hidden]: quantized where all of gate and up take that, else float rows.
    Activations x;
    RowBuffer x_rows;
    RowBuffer scores;                          // [tokens, experts]
    std::vector<PackedMatrix> gate, up, down;  // one per expert
    int per_token;
    bool normalize;
    Activation kind;
    // Workspace of per_token rows a token:
    Activations grouped;  // width hidden; grouped_rows if x_rows
    RowBuffer grouped_rows;
    RowBuffer gate_rows, up_rows, down_rows;
    Activations hidden;  // width of an expert; hidden_rows if not all of down take them
    RowBuffer hidden_rows;
    RowBuffer out;  // [tokens, hidden]
};

// Whether all of them are multiplied with quantized activations.
bool take_quantized(const Kernels& kernels, const std::vector<PackedMatrix>& experts);

void append_mixture(Plan& plan, const MixtureArgs& args);

}  // namespace kvist
