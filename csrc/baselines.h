// What the kernels are compared with by `kvist repro`, and nothing else: the same arithmetic on the same lanes without the idea
// that is measured. Not part of a model's step.
#pragma once

#include <cstdint>

namespace kvist {

constexpr int kStrip = 32;  // keys that lie together in transposed keys

// Causal attention of one sequence that materializes its scores: three passes over a matrix [num_q_heads][num_queries][row].
// row: num_keys rounded up to kStrip. Query i stands at position first_query + i and sees the keys up to itself.
struct NaiveAttention {
    const float* q;  // [num_queries][num_q_heads][head_dim]
    const float* k;  // [num_keys][num_kv_heads][head_dim]
    const float* v;  // as k
    float*
        transposed;  // [num_kv_heads][row / kStrip][head_dim][kStrip]: keys, laid out for the first pass; the unit's also hold values
    float* scores;
    float* out;  // as q
    int num_queries, num_keys, first_query;
    int num_q_heads, num_kv_heads, head_dim;  // at most 256
    float scale;

    int row() const { return (num_keys + kStrip - 1) / kStrip * kStrip; }
};

struct Baselines {
    int step;  // head_dim must be a multiple of it
    void (*lay_out)(const NaiveAttention&, int kv_head);
    // `lay_out` fills `transposed`. The others each for queries [begin, end) of one head: scores up to the newest query's position; softmax over a row, with zeros
    // behind what its query sees; the weighted sum of values.
    void (*scores)(const NaiveAttention&, int head, int begin, int end);
    void (*softmax)(const NaiveAttention&, int head, int begin, int end);
    void (*values)(const NaiveAttention&, int head, int begin, int end);
};

}  // namespace kvist
