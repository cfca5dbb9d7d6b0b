// Attention's products on the matrix unit: queries, keys, softmax weights and values as bfloat16, sums in float32. Keys and values
// lie in the pool as the unit multiplies them (see KVLayout). The denominators sum the weights before they are rounded.
#pragma once

#include "attention_softmax.h"
#include "matrix_unit.h"

namespace kvist::KVIST_ISA {

// A query's weights stay relative to the same score until one is more than 2^kSlack: then all that it has summed up is scaled
// anew, which is rare after a segment's first tile.
constexpr float kSlack = 8.0f;
#if defined(KVIST_MATRIX_UNIT)
constexpr bool kHasMatrixUnit = true;
#else
constexpr bool kHasMatrixUnit = false;
#endif
constexpr int kBlockRows = kTileRows;  // query vectors of one product
constexpr int kDepth = 2 * kTileRows;  // numbers that a product adds up
constexpr int kBlocksAtOnce = 2;       // that keys are read for

// 2^x for x up to kSlack, within 2^-13, and 1 for 0; NaN stays NaN. A cubic in the fraction of x that meets 1 and 2.
inline F16 exp2_weight(F16 x) {
    const F16 r = fraction(x);
    F16 p = set1(0.07751164f);
    p = fma(p, r, set1(0.22748836f));
    p = fma(p, r, set1(0.695f));
    p = fma(p, r, set1(1.0f));
    return scale_exp2_floor(p, x);
}

struct MatrixTile {
    alignas(64) uint16_t q[kMaxQueries * kMaxHeadDim];  // [query][head_dim], scaled
    alignas(64) uint16_t v[kSegment * kMaxHeadDim];     // of a tile or a segment, [keys / 2][head_dim][2]
    alignas(64) float scores[kBlocksAtOnce][kBlockRows][kTileKeys];
    alignas(64) uint16_t weights[kBlocksAtOnce][kBlockRows][kTileKeys];
    alignas(64) float sums[kBlockRows][kLanes];                          // of the weights, if they are to stay
    const uint8_t *keys[kSegment / kLanes], *values[kSegment / kLanes];  // of sixteen each, in the pool
};

class MatrixMath {
   public:
    // By shape alone, so that results depend on nothing else.
    static bool takes(const KVLayout& kv) { return kHasMatrixUnit && kv.type == KVType::bf16 && kv.head_dim % kDepth == 0; }

    MatrixMath(const AttentionArgs& a, int num_queries)
        : keeps_values_(num_queries > kBlocksAtOnce * kBlockRows), head_dim_(a.kv.head_dim), row_bytes_(4 * a.kv.block_size),
          kv_(a.kv), room_(scratch<MatrixTile>()), unit_(shapes(std::min(num_queries, kBlockRows))) {}

    void prepare_query(int i, const float* q, float scale) {
        for (int d = 0; d < head_dim_; d += kLanes) store_bfloat(room_.q + i * head_dim_ + d, mul(load(q + d), set1(scale)));
    }

    // Takes keys [first, first + num_keys) of one segment, from the start of a tile on.
    void load_keys(const int32_t* block_table, int kv_head, int first, int num_keys) {
        num_keys_ = num_keys;
        for (int i = 0; i * kLanes < num_keys; i++) {
            const int key = first + i * kLanes, slot = key % kv_.block_size;
            room_.keys[i] = kv_.keys(block_table, key, kv_head) + 4 * slot;
            room_.values[i] = kv_.values(block_table, key, kv_head) + 2 * slot * head_dim_;
        }
    }

    // Gathers a tile's values where `values` finds them: a block of the pool may hold fewer than a product adds up.
    void load_values(int tile) {
        const int pair_bytes = 4 * head_dim_;  // of two values
        uint8_t* to = reinterpret_cast<uint8_t*>(tile_values(tile));
        uint8_t* end = to + kTileKeys / 2 * pair_bytes;
        for (int i = tile * kTileVectors; to < end && i * kLanes < num_keys_; i++) {
            const int count = std::min(kLanes, num_keys_ - i * kLanes);
            std::memcpy(to, room_.values[i], (count + 1) / 2 * pair_bytes);
            to += (count + 1) / 2 * pair_bytes;
            if (count % 2) {  // the pair's other half was never written, nor were later pairs
                auto* pairs = reinterpret_cast<uint16_t*>(to - pair_bytes);
                for (int d = 0; d < head_dim_; d++) pairs[2 * d + 1] = 0;
            }
        }
        std::memset(to, 0, end - to);
    }

    // Scores of the block of queries from `query` on, for `columns` keys of a tile: products of 16 queries by 32 dimensions.
    void scores(int query, int tile, int columns, float (*scores)[kTileKeys]) {
        const uint16_t* q = room_.q + query * head_dim_;
        const uint8_t* const* keys = room_.keys + tile * kTileVectors;
        const int64_t key_stride = row_bytes_, q_stride = 2 * head_dim_;
        tile_zero<0>();
        tile_zero<1>();
        tile_zero<2>();
        tile_zero<3>();
        for (int d = 0; d < head_dim_; d += kDepth) {
            const int64_t at = d / 2 * key_stride;
            tile_load<4>(q + d, q_stride);
            tile_load<6>(keys[0] + at, key_stride);
            tile_dot_bfloat<0, 4, 6>();
            if (columns > kLanes) {
                tile_load<7>(keys[1] + at, key_stride);
                tile_dot_bfloat<1, 4, 7>();
            }
            if (columns > 2 * kLanes) {
                tile_load<6>(keys[2] + at, key_stride);
                tile_dot_bfloat<2, 4, 6>();
            }
            if (columns > 3 * kLanes) {
                tile_load<7>(keys[3] + at, key_stride);
                tile_dot_bfloat<3, 4, 7>();
            }
        }
        constexpr int kStride = sizeof(float) * kTileKeys;
        tile_store<0>(scores[0], kStride);
        tile_store<1>(scores[0] + kLanes, kStride);
        tile_store<2>(scores[0] + 2 * kLanes, kStride);
        tile_store<3>(scores[0] + 3 * kLanes, kStride);
    }

    // out += weights * values of a tile, for sixteen rows of `out`.
    void values(int tile, const uint16_t (*weights)[kTileKeys], float* out) {
        const int64_t stride = 4 * head_dim_;
        const uint16_t *early = tile_values(tile), *late = early + kDepth * head_dim_;
        tile_load<4>(weights[0], sizeof weights[0]);
        tile_load<5>(weights[0] + kDepth, sizeof weights[0]);
        int d = 0;
        for (; d + 4 * kLanes <= head_dim_; d += 4 * kLanes) {
            tile_load<0>(out + d, stride);
            tile_load<6>(early + 2 * d, stride);
            tile_dot_bfloat<0, 4, 6>();
            tile_load<1>(out + d + kLanes, stride);
            tile_load<7>(early + 2 * (d + kLanes), stride);
            tile_dot_bfloat<1, 4, 7>();
            tile_load<2>(out + d + 2 * kLanes, stride);
            tile_load<6>(early + 2 * (d + 2 * kLanes), stride);
            tile_dot_bfloat<2, 4, 6>();
            tile_load<3>(out + d + 3 * kLanes, stride);
            tile_load<7>(early + 2 * (d + 3 * kLanes), stride);
            tile_dot_bfloat<3, 4, 7>();
            tile_load<6>(late + 2 * d, stride);
            tile_dot_bfloat<0, 5, 6>();
            tile_load<7>(late + 2 * (d + kLanes), stride);
            tile_dot_bfloat<1, 5, 7>();
            tile_load<6>(late + 2 * (d + 2 * kLanes), stride);
            tile_dot_bfloat<2, 5, 6>();
            tile_load<7>(late + 2 * (d + 3 * kLanes), stride);
            tile_dot_bfloat<3, 5, 7>();
            tile_store<0>(out + d, stride);
            tile_store<1>(out + d + kLanes, stride);
            tile_store<2>(out + d + 2 * kLanes, stride);
            tile_store<3>(out + d + 3 * kLanes, stride);
        }
        for (; d < head_dim_; d += kDepth) {
            tile_load<0>(out + d, stride);
            tile_load<1>(out + d + kLanes, stride);
            tile_load<6>(early + 2 * d, stride);
            tile_dot_bfloat<0, 4, 6>();
            tile_load<7>(early + 2 * (d + kLanes), stride);
            tile_dot_bfloat<1, 4, 7>();
            tile_load<6>(late + 2 * d, stride);
            tile_dot_bfloat<0, 5, 6>();
            tile_load<7>(late + 2 * (d + kLanes), stride);
            tile_dot_bfloat<1, 5, 7>();
            tile_store<0>(out + d, stride);
            tile_store<1>(out + d + kLanes, stride);
        }
    }

    MatrixTile& room() { return room_; }

   private:
    uint16_t* tile_values(int tile) { return room_.v + (keeps_values_ ? tile * kTileKeys * head_dim_ : 0); }

    // 0 to 3: products, 4 and 5: queries or weights, 6 and 7: keys or values.
    static TileShapes shapes(int num_rows) {
        const auto rows = static_cast<uint8_t>(num_rows);
        return {{rows, rows, rows, rows, rows, rows, kTileRows, kTileRows}, {64, 64, 64, 64, 64, 64, 64, 64}};
    }

    const bool keeps_values_;  // of all tiles of a segment, for they pass several times
    const int head_dim_;
    int num_keys_ = 0;
    const int64_t row_bytes_;  // from a pair of dimensions of a key to the next
    const KVLayout& kv_;
    MatrixTile& room_;
    MatrixUnit unit_;
};

struct QueryBlock {  // of query vectors
    int q, rows;
    Seen seen;
    int num_keys = 0;  // of the tile that they look at; 0: none
};

// How far scores are above what their query's weights are relative to, at most, in each lane; leaves weights and sums.
inline F16 weigh(const QueryBlock& b, const float (*scores)[kTileKeys], const Workspace& w, uint16_t (*weights)[kTileKeys],
                 float (*sums)[kLanes]) {
    F16 excess = set1(kMasked);
    for (int i = 0; i < b.rows; i++) {
        const F16 top = set1(w.max[b.q + i]);
        F16 total = load(w.sums[b.q + i]), weight[kTileVectors];
        for (int c = 0; c < kTileVectors; c++) {
            const F16 x = sub(load(scores[i] + c * kLanes), top);
            excess = max(x, excess);  // in this order, for a NaN would hide what others need
            weight[c] = exp2_weight(x);
            total = add(total, weight[c]);
        }
        store(sums[i], total);
        store_bfloat2(weights[i], weight[0], weight[1]);
        store_bfloat2(weights[i] + kDepth, weight[2], weight[3]);
    }
    return excess;
}

// Moves what weights are relative to up to the scores where those are far above, and what is summed up so far along with it.
inline void raise_maxima(const QueryBlock& b, const float (*scores)[kTileKeys], int head_dim, Workspace& w) {
    static_assert(kBlockRows == kLanes && kTileVectors == 4);
    alignas(64) float tops[kLanes] = {}, factor[kLanes];
    for (int i = 0; i < b.rows; i++) {
        const float* s = scores[i];
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
        for (int d = 0; d < head_dim; d += kLanes) store(out + d, mul(load(out + d), shrink));
    }
}

// Turns a block's scores of the tile of keys from `first` on into weights.
inline void softmax(const AttentionArgs& a, MatrixTile& room, const QueryBlock& b, int first, float (*scores)[kTileKeys],
                    uint16_t (*weights)[kTileKeys], Workspace& w) {
    if (!b.seen.all(first) || a.softcap > 0)
        for (int i = 0; i < b.rows; i++) {
            const int position = w.queries[b.q + i].position;
            mask_scores(a, scores[i], kTileVectors, oldest_key(a, position) - first,
                        std::min(position - first + 1, b.num_keys));
        }
    const bool is_start = w.max[b.q] == kStart;
    if (is_start || reduce_max(weigh(b, scores, w, weights, room.sums)) > kSlack) {
        raise_maxima(b, scores, a.kv.head_dim, w);
        weigh(b, scores, w, weights, room.sums);
    }
    std::memcpy(w.sums[b.q], room.sums, b.rows * sizeof room.sums[0]);
}

// As attend for other ways to multiply, for keys of one segment. A few blocks of queries pass all keys before the next do, so that
// what they sum up stays near. The unit multiplies for all of them in turn: it and vectors slow one another down.
inline void attend(const AttentionArgs& a, MatrixMath& math, const int32_t* block_table, int kv_head, int count, int begin,
                   int end, Workspace& w) {
    if (begin >= end) return;
    math.load_keys(block_table, kv_head, begin, end - begin);
    MatrixTile& room = math.room();
    for (int group = 0; group < count; group += kBlocksAtOnce * kBlockRows) {
        QueryBlock blocks[kBlocksAtOnce];
        const int num_blocks = std::min(kBlocksAtOnce, (count - group + kBlockRows - 1) / kBlockRows);
        for (int i = 0; i < num_blocks; i++) {
            const int q = group + i * kBlockRows, rows = std::min(kBlockRows, count - q);
            blocks[i] = {q, rows, Seen(a, w, q, rows)};
        }
        for (int tile = 0; tile * kTileKeys < end - begin; tile++) {
            const int first = begin + tile * kTileKeys, num_keys = std::min(kTileKeys, end - first);
            if (group == 0) math.load_values(tile);
            for (int i = 0; i < num_blocks; i++) {
                blocks[i].num_keys = blocks[i].seen.num_keys(first, num_keys);  // hidden keys change no statistics
                if (blocks[i].num_keys > 0) math.scores(blocks[i].q, tile, blocks[i].num_keys, room.scores[i]);
            }
            for (int i = 0; i < num_blocks; i++)
                if (blocks[i].num_keys > 0) softmax(a, room, blocks[i], first, room.scores[i], room.weights[i], w);
            for (int i = 0; i < num_blocks; i++)
                if (blocks[i].num_keys > 0) math.values(tile, room.weights[i], w.out + blocks[i].q * a.kv.head_dim);
        }
    }
}

}  // namespace kvist::KVIST_ISA
