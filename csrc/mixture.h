// Mixture of experts as a run of operations; see mixture.cpp.
#pragma once

#include "plan.h"

#include <vector>

namespace kvist {

struct MixtureArgs {
    QuantBuffer x;     // [tokens, hidden]
    RowBuffer scores;  // [tokens, experts]
    std::vector<PackedMatrix> gate, up, down;  // one per expert
    int per_token;
    bool normalize;
    Activation kind;
    // Workspace of per_token rows a token:
    QuantBuffer grouped;                         // width hidden
    RowBuffer gate_rows, up_rows, down_rows;
    QuantBuffer hidden;                          // width of an expert
    RowBuffer out;     // [tokens, hidden]
};

void append_mixture(Plan& plan, const MixtureArgs& args);

}  // namespace kvist
