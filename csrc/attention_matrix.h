// Attention on the matrix unit: in turns, a softmax beside the products of the turns before and after. The denominators sum the weights
// before they are scaled and rounded.
#pragma once

#include "attention_products.h"

#include <utility>

namespace kvist::KVIST_ISA {

// A query's weights stay relative to the same score until one is more than 2^kSlack: then all that it has summed up is scaled
// anew, which is rare after a segment's first tile.
constexpr float kSlack = 8.0f;

// 2^x for x up to kSlack, within 2^-13, and 1 for 0; NaN stays NaN. A cubic in the fraction of x that meets 1 and 2.
inline F16 exp2_weight(F16 x) {
    const F16 r = fraction(x);
    F16 p = set1(0.07751164f);
    p = fma(p, r, set1(0.22748836f));
    p = fma(p, r, set1(0.695f));
    p = fma(p, r, set1(1.0f));
    return scale_exp2_floor(p, x);
}

struct QueryBlock {  // of query vectors
    int q = 0, rows = 0;
    Seen seen;
    bool is_fresh = false;  // nothing is summed up yet
};

// A block of queries at a tile of keys.
struct Turn {
    const QueryBlock* block = nullptr;  // null: there is none
    int tile = 0, num_keys = 0;
    bool starts = false;  // is the block's first, of a segment that starts afresh
    float (*scores)[kTileKeys] = nullptr;
    uint16_t (*weights)[kTileKeys] = nullptr;
};

// Products that run beside the softmax of a turn: the unit needs neither its scores nor its weights for the scores of the next
// turn and the values of the one before.
class Beside {
   public:
    Beside(MatrixMath& math, const Turn& before, const Turn& after, float* out)
        : math_(math), before_(before), after_(after), out_(out), num_scores_(after.block ? math.num_score_steps() : 0),
          num_values_(before.block ? math.num_value_steps() : 0) {}
    void finish_values() {
        while (value_ < num_values_) math_.value_step(value_++, before_.tile, before_.weights, out_, before_.starts);
    }
    // One of kParts, of about equal size.
    void run_part() {
        const int left = num_scores_ - score_ + num_values_ - value_;
        for (int i = (left + parts_left_ - 1) / parts_left_; i > 0; i--) step();
        parts_left_ = std::max(1, parts_left_ - 1);
    }
    void finish() {
        while (step()) {
        }
    }
    static constexpr int kParts = 4;
    // Whether `products` are all that is to run, none of them has, and heads are as wide.
    bool has_products(int head_dim) const {
        return score_ + value_ == 0 && num_scores_ && num_values_ && math_.has_products(head_dim, after_.tile);
    }
    // Leaves them to the caller.
    Products take_products() {
        num_scores_ = num_values_ = 0;
        return math_.products(after_.block->q, after_.tile, after_.scores, before_.tile, before_.weights, out_, before_.starts);
    }

   private:
    bool step() {
        if (score_ < num_scores_) math_.score_step(score_++, after_.block->q, after_.tile, after_.num_keys, after_.scores);
        else if (value_ < num_values_) math_.value_step(value_++, before_.tile, before_.weights, out_, before_.starts);
        else return false;
        return true;
    }

    MatrixMath& math_;
    const Turn &before_, &after_;
    float* const out_;  // of the turn before
    int num_scores_, num_values_;
    int score_ = 0, value_ = 0, parts_left_ = kParts;
};

// Of a tile of int8 keys and values; null: of others.
struct Scales {
    const float *of_keys, *of_values;
};
struct Ones {
    alignas(64) float of[kTileKeys];
    constexpr Ones() : of() {
        for (float& x : of) x = 1.0f;
    }
};
inline constexpr Ones kOnes;

// Multiplies scores with their keys' scales where they lie, once.
inline void scale_scores(const Turn& turn, Scales& scales) {
    if (!scales.of_keys || scales.of_keys == kOnes.of) return;
    for (int i = 0; i < turn.block->rows; i++)
        for (int c = 0; c < kTileKeys; c += kLanes)
            store(turn.scores[i] + c, mul(load(turn.scores[i] + c), load(scales.of_keys + c)));
    scales.of_keys = kOnes.of;
}

// What a turn's scores become weights and sums by. Copies, which the compiler can keep in registers while tiles are stored.
struct Weighing {
    const float (*scores)[kTileKeys];
    uint16_t (*weights)[kTileKeys];
    const float *max, (*before)[kLanes];
    float (*sums)[kLanes];
    Scales scales;
};

// Of one row; returns how far scores are above what their query's weights are relative to, at most, in each lane.
template <bool kIsScaled>
[[gnu::always_inline]] inline F16 weigh_row(const Weighing& by, int i, F16 excess) {
    const F16 top = set1(by.max[i]);
    F16 total = load(by.before[i]), weight[kTileVectors];
    for (int c = 0; c < kTileVectors; c++) {
        F16 score = load(by.scores[i] + c * kLanes);
        if constexpr (kIsScaled) score = mul(score, load(by.scales.of_keys + c * kLanes));
        const F16 x = sub(score, top);
        excess = max(x, excess);  // in this order, for a NaN would hide what others need
        weight[c] = exp2_weight(x);
        total = add(total, weight[c]);
        if constexpr (kIsScaled) weight[c] = mul(weight[c], load(by.scales.of_values + c * kLanes));
    }
    store(by.sums[i], total);
    store_bfloat2(by.weights[i], weight[0], weight[1]);
    store_bfloat2(by.weights[i] + kDepth, weight[2], weight[3]);
    return excess;
}

// Rows in parts, with a part of what runs beside them before each.
template <bool kIsScaled>
F16 weigh_in_parts(const Weighing& by, int rows, Beside& beside) {
    F16 excess = set1(kMasked);
    for (int i = 0; i < rows; i++) {
        if (i % (kBlockRows / Beside::kParts) == 0) beside.run_part();
        excess = weigh_row<kIsScaled>(by, i, excess);
    }
    beside.finish();
    return excess;
}

template <int kHeadDim, int kFirst, int... kSteps>
[[gnu::always_inline]] inline void run_products(const Products& p, std::integer_sequence<int, kSteps...>) {
    (run_product<kHeadDim, kFirst + kSteps>(p), ...);
}

// A whole block of rows, with as many products before each: unit and vectors overlap no further than the processor looks ahead.
template <int kHeadDim, bool kIsScaled, int... kRows>
F16 weigh_beside(const Weighing by, const Products p, std::integer_sequence<int, kRows...>) {
    constexpr int kPerRow = kHeadDim / kDepth * kTileVectors * 2 / kBlockRows;
    static_assert(kPerRow > 0 && sizeof...(kRows) == kBlockRows && kHeadDim % kValueColumns == 0);
    F16 excess = set1(kMasked);
    ((run_products<kHeadDim, kRows * kPerRow>(p, std::make_integer_sequence<int, kPerRow>()),
      excess = weigh_row<kIsScaled>(by, kRows, excess)),
     ...);
    return excess;
}

template <bool kIsScaled>
F16 weigh(const Turn& turn, const Scales& scales, const Workspace& w, float (*sums)[kLanes], Beside& beside) {
    const QueryBlock& b = *turn.block;
    const Weighing by = {turn.scores, turn.weights, w.max + b.q, w.sums + b.q, sums, scales};
    const auto all_rows = std::make_integer_sequence<int, kBlockRows>();
    if (b.rows == kBlockRows) {
        if (beside.has_products(64)) return weigh_beside<64, kIsScaled>(by, beside.take_products(), all_rows);
        if (beside.has_products(128)) return weigh_beside<128, kIsScaled>(by, beside.take_products(), all_rows);
    }
    return weigh_in_parts<kIsScaled>(by, b.rows, beside);
}

// Moves what weights are relative to up to the scores where those are far above, and what is summed up so far along with it.
inline void raise_maxima(const Turn& turn, int head_dim, Workspace& w) {
    static_assert(kBlockRows == kLanes && kTileVectors == 4);
    const QueryBlock& b = *turn.block;
    alignas(64) float tops[kLanes] = {}, factor[kLanes];
    for (int i = 0; i < b.rows; i++) {
        const float* s = turn.scores[i];
        tops[i] = reduce_max(max(max(load(s), load(s + kLanes)), max(load(s + 2 * kLanes), load(s + 3 * kLanes))));
    }
    const F16 old = load(w.max + b.q), top = load(tops);
    const F16 raised = select_lt(set1(kSlack), sub(top, old), top, old);
    store(factor, exp2_negative(sub(old, raised)));
    store(w.max + b.q, raised);
    for (int i = 0; i < b.rows; i++) {
        if (factor[i] == 1.0f) continue;
        const F16 shrink = set1(factor[i]);
        float* out = w.out + (b.q + i) * head_dim;
        store(w.sums[b.q + i], mul(load(w.sums[b.q + i]), shrink));
        if (turn.starts) continue;
        for (int d = 0; d < head_dim; d += kLanes) store(out + d, mul(load(out + d), shrink));
    }
}

// Asks for the lines that a block's results will be written to, while keys pass: at the end each would be waited for.
inline void fetch_results(const QueryBlock& b, int head_dim, const Workspace& w) {
    for (int i = 0; i < b.rows; i++)
        for (int d = 0; d < head_dim; d += kLanes) __builtin_prefetch(w.queries[b.q + i].out + d, 1);
}

// Turns the scores of a turn, whose tile of keys begins at `first`, into weights.
inline void softmax(const AttentionArgs& a, MatrixMath& math, const Turn& turn, int first, Beside& beside, Workspace& w) {
    const QueryBlock& b = *turn.block;
    if (turn.starts) fetch_results(b, a.kv.head_dim, w);
    auto& sums = math.room().sums;
    Scales scales = {math.key_scales(turn.tile), math.value_scales(turn.tile)};
    const auto weights = [&] {
        return scales.of_keys ? weigh<true>(turn, scales, w, sums, beside) : weigh<false>(turn, scales, w, sums, beside);
    };
    if (!b.seen.all(first) || a.softcap > 0) {
        scale_scores(turn, scales);
        for (int i = 0; i < b.rows; i++) {
            const int position = w.queries[b.q + i].position;
            mask_scores(a, turn.scores[i], kTileVectors, oldest_key(a, position) - first,
                        std::min(position - first + 1, turn.num_keys));
        }
    }
    if (w.max[b.q] == kStart) {
        if (!turn.starts) beside.finish_values();  // that the turn before may have left for the same queries
        scale_scores(turn, scales);
        raise_maxima(turn, a.kv.head_dim, w);
    }
    if (reduce_max(weights()) > kSlack) {
        scale_scores(turn, scales);
        raise_maxima(turn, a.kv.head_dim, w);
        weights();
    }
    std::memcpy(w.sums[b.q], sums, b.rows * sizeof sums[0]);
}

// The turns of blocks of queries over the keys of one segment, a tile of keys at a time. A few blocks pass all keys before the next do,
// so that what they sum up stays near.
class Turns {
   public:
    Turns(const AttentionArgs& a, const Workspace& w, int count, int begin, int end, bool is_fresh, MatrixTile& room)
        : begin_(begin), end_(end), room_(room) {
        for (int q = 0; q < count; q += kBlockRows) {
            const int rows = std::min(kBlockRows, count - q);
            blocks_[num_blocks_++] = {q, rows, Seen(a, w, q, rows), is_fresh};
        }
    }
    Turn next() {
        for (; group_ < num_blocks_; group_ += kBlocksAtOnce, tile_ = 0) {
            const int group_end = std::min(group_ + kBlocksAtOnce, num_blocks_);
            for (; begin_ + tile_ * kTileKeys < end_; tile_++, block_ = group_) {
                const int first = begin_ + tile_ * kTileKeys, num_keys = std::min(kTileKeys, end_ - first);
                while (block_ < group_end) {
                    QueryBlock& block = blocks_[block_++];
                    const int num_seen = block.seen.num_keys(first, num_keys);
                    if (num_seen <= 0) continue;  // hidden keys change no statistics
                    const int side = num_turns_++ % 2;
                    const bool starts = std::exchange(block.is_fresh, false);
                    return {&block, tile_, num_seen, starts, room_.scores[side], room_.weights[side]};
                }
            }
            block_ = group_end;
        }
        return {};
    }

   private:
    QueryBlock blocks_[kMaxQueries / kBlockRows];
    const int begin_, end_;
    MatrixTile& room_;
    int num_blocks_ = 0, group_ = 0, tile_ = 0, block_ = 0, num_turns_ = 0;
};

// As attend for other ways to multiply, for keys of one segment.
inline void attend(const AttentionArgs& a, MatrixMath& math, const int32_t* block_table, int kv_head, int count, int begin,
                   int end, bool is_fresh, Workspace& w) {
    if (begin >= end) return;
    math.load_keys(block_table, kv_head, begin, end - begin);
    const auto out_of = [&](const Turn& turn) { return turn.block ? w.out + turn.block->q * a.kv.head_dim : nullptr; };
    Turns turns(a, w, count, begin, end, is_fresh, math.room());
    const auto next = [&] {
        const Turn turn = turns.next();
        if (turn.block) math.need_keys(turn.tile);
        return turn;
    };
    Turn before, now, after = next();
    Beside(math, before, after, nullptr).finish();
    while (after.block) {
        before = now, now = after, after = next();
        math.need_values(now.tile);
        Beside beside(math, before, after, out_of(before));
        softmax(a, math, now, begin + now.tile * kTileKeys, beside, w);
    }
    Beside(math, now, after, out_of(now)).finish();
}

}  // namespace kvist::KVIST_ISA
