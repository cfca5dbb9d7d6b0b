// Mixture of experts as a run of operations; see mixture.cpp.
#pragma once

#include "plan.h"

#include <vector>

namespace kvist {

struct MixtureArgs {
    // [tokens, hidden]: int8 where gate and up are quantized, float rows where they are dense.
    Activations x;
    RowBuffer x_rows;
    RowBuffer scores;                          // [tokens, experts]
    std::vector<PackedMatrix> gate, up, down;  // one per expert
    int per_token;
    bool normalize;
    Activation kind;
    // Workspace of per_token rows a token:
    Activations grouped;  // width hidden; grouped_rows if gate and up are dense
    RowBuffer grouped_rows;
    RowBuffer gate_rows, up_rows, down_rows;
    Activations hidden;  // width of an expert; hidden_rows if down is dense
    RowBuffer hidden_rows;
    RowBuffer out;  // [tokens, hidden]
};

void append_mixture(Plan& plan, const MixtureArgs& args);

}  // namespace kvist
