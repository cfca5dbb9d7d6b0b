// What attention keeps of each query vector while keys pass, and the online softmax of one tile.
#pragma once

#include "attention_tile.h"

#include <algorithm>
#include <cmath>

namespace kvist::KVIST_ISA {

constexpr float kMasked = -2e30f;  // finite: 2^(kMasked - anything seen) is 0 without a NaN on the way
constexpr float kStart = -1e30f;
constexpr float kLog2E = 1.44269504f;

struct Query {
    int position;
    const float* q;
    float* out;  // [head_dim]: where what is attended goes
};

struct Workspace {
    alignas(64) float out[kMaxQueries * kMaxHeadDim];  // weighted values of a segment, [query][head_dim]
    alignas(64) float sums[kMaxQueries][kLanes];       // softmax sums, key by key in lanes
    alignas(64) float max[kMaxQueries];                // what weights are relative to, in powers of two
    alignas(64) float total[kMaxQueries];              // merged over segments
    alignas(64) float scores[kLanes][kTileKeys];       // then softmax weights
    alignas(64) float merged_max[kMaxQueries];
    Query queries[kMaxQueries];
};

inline int oldest_key(const AttentionArgs& a, int position) { return a.window > 0 ? std::max(0, position - a.window + 1) : 0; }

struct KeyIndices {
    alignas(64) float of[kTileKeys];
    constexpr KeyIndices() : of() {
        for (int j = 0; j < kTileKeys; j++) of[j] = static_cast<float>(j);
    }
};
inline constexpr KeyIndices kIndices;

// Soft-caps the scores of one query and hides keys outside [oldest, end) of the tile.
inline void mask_scores(const AttentionArgs& a, float* s, int vectors, int oldest, int end) {
    if (a.softcap > 0)
        for (int j = 0; j < vectors * kLanes; j++) s[j] = a.softcap * kLog2E * std::tanh(s[j] / a.softcap);
    if (oldest <= 0 && end >= vectors * kLanes) return;
    const F16 low = set1(static_cast<float>(oldest)), high = set1(static_cast<float>(end)), hidden = set1(kMasked);
    for (int c = 0; c < vectors; c++) {
        const F16 index = load(kIndices.of + c * kLanes);
        const F16 seen = select_lt(index, high, load(s + c * kLanes), hidden);
        store(s + c * kLanes, select_lt(index, low, hidden, seen));
    }
}

// Turns scores of queries [q, q + rows) into softmax weights; factor[i] is what the query's earlier values and sums shrink by.
inline void softmax_tile(const AttentionArgs& a, Workspace& w, int q, int rows, int first, int num_seen, float* factor) {
    const int vectors = (num_seen + kLanes - 1) / kLanes;
    for (int i = 0; i < rows; i++) {
        float* s = w.scores[i];
        const int position = w.queries[q + i].position;
        mask_scores(a, s, vectors, oldest_key(a, position) - first, std::min(position - first + 1, num_seen));
        F16 m = load(s);
        for (int c = 1; c < vectors; c++) m = max(m, load(s + c * kLanes));
        const float top = std::max(w.max[q + i], reduce_max(m));
        factor[i] = w.max[q + i] - top;
        w.max[q + i] = top;
    }
    store(factor, exp2_negative(load(factor)));
    for (int i = 0; i < rows; i++) {
        const F16 top = set1(w.max[q + i]);
        F16 total = mul(load(w.sums[q + i]), set1(factor[i]));
        for (int c = 0; c < vectors; c++) {
            const F16 weight = exp2_negative(sub(load(w.scores[i] + c * kLanes), top));
            total = add(total, weight);
            store(w.scores[i] + c * kLanes, weight);
        }
        store(w.sums[q + i], total);
    }
}

// Which keys queries [q, q + rows) see.
class Seen {
   public:
    Seen() = default;
    Seen(const AttentionArgs& a, const Workspace& w, int q, int rows)
        : newest_(w.queries[q].position), newest_of_all_(newest_), oldest_(oldest_key(a, newest_)), oldest_of_all_(oldest_) {
        for (int i = q + 1; i < q + rows; i++) {
            const int position = w.queries[i].position, oldest = oldest_key(a, position);
            newest_ = std::max(newest_, position);
            newest_of_all_ = std::min(newest_of_all_, position);
            oldest_ = std::min(oldest_, oldest);
            oldest_of_all_ = std::max(oldest_of_all_, oldest);
        }
    }
    // How many of a tile of `num_keys` keys must be looked at; 0: none is seen.
    int num_keys(int first, int num_keys) const {
        const int count = std::min(num_keys, newest_ - first + 1);
        return oldest_ >= first + count ? 0 : count;
    }
    // Whether all see the whole tile.
    bool all(int first) const { return newest_of_all_ >= first + kTileKeys - 1 && oldest_of_all_ <= first; }

   private:
    int newest_ = 0, newest_of_all_ = 0;  // the last key that any sees, that all see
    int oldest_ = 0, oldest_of_all_ = 0;
};

}  // namespace kvist::KVIST_ISA
