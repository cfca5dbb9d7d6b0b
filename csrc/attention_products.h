// Attention's products on the matrix unit: queries, keys, softmax weights and values as bfloat16, sums in float32. Keys and values
// lie in the pool as the unit multiplies them (see KVLayout), or are int8 and widened, which loses nothing: a key's scale goes to its
// scores, a value's to its weights.
#pragma once

#include "attention_integers.h"
#include "attention_softmax.h"
#include "matrix_unit.h"

namespace kvist::KVIST_ISA {

#if defined(KVIST_MATRIX_UNIT)
constexpr bool kHasMatrixUnit = true;
#else
constexpr bool kHasMatrixUnit = false;
#endif
constexpr int kBlockRows = kTileRows;      // query vectors of one product
constexpr int kDepth = 2 * kTileRows;      // numbers that a product adds up
constexpr int kBlocksAtOnce = 2;           // that keys are read for
constexpr int kValueColumns = 4 * kLanes;  // dimensions that are summed up at once

// What the products of a turn's company read and write: the scores of the turn after it, the values of the turn before.
struct Products {
    const uint16_t* q;
    const uint8_t* const* keys;  // sixteen of each
    int64_t key_stride;
    float (*scores)[kTileKeys];
    const uint16_t (*weights)[kTileKeys];
    const uint16_t* values;
    float* out;
    bool starts;  // `out` holds nothing yet, and counts as zeros
};

// Product kStep of heads of kHeadDim, in the order and with the tiles of MatrixMath's steps. Tiles of sums are stored and loaded one
// by one, each just before its next product: all at once they would keep the unit waiting.
template <int kHeadDim, int kStep>
[[gnu::always_inline]] inline void run_product(const Products& p) {
    constexpr int kScores = kHeadDim / kDepth * kTileVectors, kColumn = kStep % kTileVectors, kFrom = 6 + kStep % 2;
    constexpr int64_t kScoreBytes = sizeof(float) * kTileKeys, kOutBytes = sizeof(float) * kHeadDim;
    constexpr int kGroup = kStep / kTileVectors;  // of four products that share queries or weights
    if constexpr (kStep < kScores) {
        constexpr int d = kGroup * kDepth;
        if constexpr (d == 0) tile_zero<kColumn>();
        if constexpr (kColumn == 0) tile_load<4>(p.q + d, 2 * kHeadDim);
        tile_load<kFrom>(p.keys[kColumn] + d / 2 * p.key_stride, p.key_stride);
        tile_dot_bfloat<kColumn, 4, kFrom>();
    } else {
        constexpr int half = kGroup % 2, d = (kStep - kScores) / (2 * kTileVectors) * kValueColumns, at = d + kColumn * kLanes;
        if constexpr (half == 0) {
            if constexpr (d == 0) tile_store<kColumn>(p.scores[0] + kColumn * kLanes, kScoreBytes);
            else tile_store<kColumn>(p.out + at - kValueColumns, kOutBytes);
            if (p.starts) tile_zero<kColumn>();
            else tile_load<kColumn>(p.out + at, kOutBytes);
        }
        if constexpr (kColumn == 0) tile_load<5>(p.weights[0] + half * kDepth, sizeof p.weights[0]);
        tile_load<kFrom>(p.values + half * kDepth * kHeadDim + 2 * at, kOutBytes);
        tile_dot_bfloat<kColumn, 5, kFrom>();
        if constexpr (kStep == 2 * kScores - 1) {
            constexpr int last = kHeadDim - kValueColumns;
            tile_store<0>(p.out + last, kOutBytes);
            tile_store<1>(p.out + last + kLanes, kOutBytes);
            tile_store<2>(p.out + last + 2 * kLanes, kOutBytes);
            tile_store<3>(p.out + last + 3 * kLanes, kOutBytes);
        }
    }
}

struct MatrixTile {
    alignas(64) uint16_t q[kMaxQueries * kMaxHeadDim];  // [query][head_dim], scaled
    alignas(64) uint16_t v[kSegment * kMaxHeadDim];     // of two tiles or a segment, [keys / 2][head_dim][2]
    alignas(64) uint16_t k[kSegment * kMaxHeadDim];     // likewise, of int8: [keys / 16][head_dim / 2][16][2]
    alignas(64) float key_scales[kSegment];
    alignas(64) float value_scales[kSegment];
    alignas(64) float scores[2][kBlockRows][kTileKeys];  // of a turn and of the next
    alignas(64) uint16_t weights[2][kBlockRows][kTileKeys];
    alignas(64) float sums[kBlockRows][kLanes];  // of the weights, if they are to stay
    // Of sixteen each: in the pool, and the keys where the unit finds them.
    const uint8_t *keys[kSegment / kLanes], *values[kSegment / kLanes], *multiplied[kSegment / kLanes];
};

class MatrixMath {
   public:
    // By shape alone, so that results depend on nothing else.
    static bool takes(const KVLayout& kv) {
        return kHasMatrixUnit && (kv.type == KVType::bf16 || kv.type == KVType::int8) && kv.head_dim % kDepth == 0;
    }

    MatrixMath(const AttentionArgs& a, int num_queries)
        : is_int8_(a.kv.type == KVType::int8), keeps_tiles_(num_queries > (is_int8_ ? 1 : kBlocksAtOnce) * kBlockRows),
          head_dim_(a.kv.head_dim), row_bytes_(is_int8_ ? kTileBytes : 4 * a.kv.block_size), kv_(a.kv),
          room_(scratch<MatrixTile>()), unit_(shapes(std::min(num_queries, kBlockRows))) {}

    void prepare_query(int i, const float* q, float scale) {
        if (is_int8_) scale *= kIntegerScale;
        for (int d = 0; d < head_dim_; d += kLanes) store_bfloat(room_.q + i * head_dim_ + d, mul(load(q + d), set1(scale)));
    }

    // Takes keys [first, first + num_keys) of one segment, from the start of a tile on.
    void load_keys(const int32_t* block_table, int kv_head, int first, int num_keys) {
        num_keys_ = num_keys, num_gathered_ = num_widened_ = 0;
        for (int i = 0; i * kLanes < num_keys; i++) {
            const int key = first + i * kLanes, slot = key % kv_.block_size;
            const uint8_t *keys = kv_.keys(block_table, key, kv_head), *values = kv_.values(block_table, key, kv_head);
            room_.keys[i] = room_.multiplied[i] = keys + 4 * slot;
            room_.values[i] = values + (is_int8_ ? 1 : 2) * slot * head_dim_;
            if (is_int8_) load_scales(i, keys, values, slot, std::min(kLanes, num_keys - i * kLanes));
        }
        if (is_int8_) std::fill(room_.value_scales + num_keys, room_.value_scales + round_up(num_keys), 0.0f);  // never written
    }

    // See to it that steps find a tile's keys and values. Tiles come in order, but may be left out. What passes once is widened by
    // the steps themselves.
    void need_keys(int tile) {
        if (!is_int8_ || !keeps_tiles_) return;
        for (; num_widened_ <= tile; num_widened_++)
            for (int d = 0; d < head_dim_; d += kDepth) widen_keys(num_widened_, d);
    }
    void need_values(int tile) {
        if (is_int8_ && !keeps_tiles_) return;
        if (!keeps_tiles_) num_gathered_ = std::max(num_gathered_, tile);
        for (; num_gathered_ <= tile; num_gathered_++) {
            if (!is_int8_) gather_values(num_gathered_);
            else
                for (int half = 0; half < 2; half++) widen_values(num_gathered_, half, 0, head_dim_);
        }
    }

    // What a tile's scores and weights are to be multiplied with; null: nothing.
    const float* key_scales(int tile) const { return is_int8_ ? room_.key_scales + tile * kTileKeys : nullptr; }
    const float* value_scales(int tile) const { return is_int8_ ? room_.value_scales + tile * kTileKeys : nullptr; }

    // Products come in steps, for what runs beside them. All steps of one kind run before those of another.
    int num_score_steps() const { return head_dim_ / kDepth; }
    int num_value_steps() const { return 2 * ((head_dim_ + kValueColumns - 1) / kValueColumns); }

    // Scores of the block of queries from `query` on, for `columns` keys of a tile: products of 16 queries by 32 dimensions.
    void score_step(int step, int query, int tile, int columns, float (*scores)[kTileKeys]) {
        const int d = step * kDepth;
        const uint8_t* const* keys = room_.multiplied + tile * kTileVectors;
        const int64_t key_stride = row_bytes_, at = d / 2 * key_stride;
        if (is_int8_ && !keeps_tiles_) widen_keys(tile, d);
        if (step == 0) {
            tile_zero<0>();
            tile_zero<1>();
            tile_zero<2>();
            tile_zero<3>();
        }
        tile_load<4>(room_.q + query * head_dim_ + d, 2 * head_dim_);
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
        if (d + kDepth < head_dim_) return;
        constexpr int kStride = sizeof(float) * kTileKeys;
        tile_store<0>(scores[0], kStride);
        tile_store<1>(scores[0] + kLanes, kStride);
        tile_store<2>(scores[0] + 2 * kLanes, kStride);
        tile_store<3>(scores[0] + 3 * kLanes, kStride);
    }

    // out += weights * values of a tile, for sixteen rows of `out`: the first 32 keys, then the others, for 64 dimensions.
    // starts: `out` holds nothing yet, and counts as zeros.
    void value_step(int step, int tile, const uint16_t (*weights)[kTileKeys], float* out, bool starts) {
        const int d = step / 2 * kValueColumns, half = step % 2;
        const uint16_t* values = tile_values(tile) + half * kDepth * head_dim_ + 2 * d;
        if (is_int8_ && !keeps_tiles_) widen_values(tile, half, d, std::min(d + kValueColumns, head_dim_));
        tile_load<5>(weights[0] + half * kDepth, sizeof weights[0]);
        const bool is_whole = d + kValueColumns <= head_dim_;
        const int64_t stride = 4 * head_dim_;
        out += d;
        if (half == 0 && starts) {
            tile_zero<0>();
            tile_zero<1>();
            tile_zero<2>();
            tile_zero<3>();
        } else if (half == 0) {
            tile_load<0>(out, stride);
            tile_load<1>(out + kLanes, stride);
            if (is_whole) {
                tile_load<2>(out + 2 * kLanes, stride);
                tile_load<3>(out + 3 * kLanes, stride);
            }
        }
        tile_load<6>(values, stride);
        tile_dot_bfloat<0, 5, 6>();
        tile_load<7>(values + 2 * kLanes, stride);
        tile_dot_bfloat<1, 5, 7>();
        if (is_whole) {
            tile_load<6>(values + 4 * kLanes, stride);
            tile_dot_bfloat<2, 5, 6>();
            tile_load<7>(values + 6 * kLanes, stride);
            tile_dot_bfloat<3, 5, 7>();
        }
        if (half == 0) return;
        tile_store<0>(out, stride);
        tile_store<1>(out + kLanes, stride);
        if (!is_whole) return;
        tile_store<2>(out + 2 * kLanes, stride);
        tile_store<3>(out + 3 * kLanes, stride);
    }

    // Whether run_product may run the steps of both kinds: heads are as wide, and the whole tile after has been written.
    bool has_products(int head_dim, int tile_after) const {
        return head_dim_ == head_dim && (!is_int8_ || keeps_tiles_) && (tile_after + 1) * kTileKeys - kLanes < num_keys_;
    }
    Products products(int query, int tile_after, float (*scores)[kTileKeys], int tile_before,
                      const uint16_t (*weights)[kTileKeys], float* out, bool starts) {
        return {room_.q + query * head_dim_,
                room_.multiplied + tile_after * kTileVectors,
                row_bytes_,
                scores,
                weights,
                tile_values(tile_before),
                out,
                starts};
    }

    MatrixTile& room() { return room_; }

   private:
    static constexpr int round_up(int num_keys) { return (num_keys + kTileKeys - 1) / kTileKeys * kTileKeys; }

    // Of `count` slots from `slot` on, for the keys from 16 * i on.
    void load_scales(int i, const uint8_t* keys, const uint8_t* values, int slot, int count) {
        const int64_t at = int64_t{head_dim_} * kv_.block_size + 4 * slot;
        std::memcpy(room_.key_scales + i * kLanes, keys + at, sizeof(float) * kLanes);
        for (int j = 0; j < count; j++) {
            float scale;
            std::memcpy(&scale, values + at + 4 * j, 4);
            room_.value_scales[i * kLanes + j] = scale * kIntegerScale;
        }
    }

    // Numbers [d, d + kDepth) of a tile's keys.
    void widen_keys(int tile, int d) {
        const int first = tile * kTileVectors;
        const int64_t quad_bytes = 4 * kv_.block_size;
        uint16_t* to = tile_keys(tile) + d * kLanes;
        for (int i = first; i < first + kTileVectors && i * kLanes < num_keys_; i++, to += head_dim_ * kLanes) {
            room_.multiplied[i] = reinterpret_cast<const uint8_t*>(to - d * kLanes);
            const uint8_t *quads = room_.keys[i] + d / 4 * quad_bytes, *next = later(room_.keys, i) + d / 4 * quad_bytes;
            for (int quad = 0; quad < kDepth / 4; quad++) {
                __builtin_prefetch(next + quad * quad_bytes);
                widen_quads(quads + quad * quad_bytes, to + 2 * quad * kDepth, to + (2 * quad + 1) * kDepth);
            }
        }
    }

    // Numbers [d, end) of half a tile's values. Slots that were never written hold integers like others: their weights are 0.
    void widen_values(int tile, int half, int d, int end) {
        const int first = tile * kTileVectors + half * kTileVectors / 2, pair = 2 * head_dim_;
        uint16_t *to = tile_values(tile) + half * kDepth * head_dim_, *const all = to + kDepth * head_dim_;
        for (int i = first; to < all && i * kLanes < num_keys_; i++)
            for (int quad = 0; quad < kLanes / 4; quad++, to += 2 * pair) {
                const uint8_t *quads = room_.values[i] + 4 * quad * head_dim_,
                              *next = later(room_.values, i) + 4 * quad * head_dim_;
                for (int at = d; at < end; at += kLanes) {
                    __builtin_prefetch(next + 4 * at);
                    widen_quads(quads + 4 * at, to + 2 * at, to + pair + 2 * at);
                }
            }
        for (; to < all; to += pair) std::fill(to + 2 * d, to + 2 * end, uint16_t{0});
    }

    // The same keys of the next tile, for they will be wanted soon.
    const uint8_t* later(const uint8_t* const* of, int i) const {
        return of[(i + kTileVectors) * kLanes < num_keys_ ? i + kTileVectors : i];
    }

    // A block of the pool may hold fewer values than a product adds up.
    void gather_values(int tile) {
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

    int place_of(int tile) const { return (keeps_tiles_ ? tile : is_int8_ ? 0 : tile % 2) * kTileKeys * head_dim_; }
    uint16_t* tile_keys(int tile) { return room_.k + place_of(tile); }
    uint16_t* tile_values(int tile) { return room_.v + place_of(tile); }

    // 0 to 3: products, 4: queries, 5: weights, 6 and 7: keys or values.
    static TileShapes shapes(int num_rows) {
        const auto rows = static_cast<uint8_t>(num_rows);
        return {{rows, rows, rows, rows, rows, rows, kTileRows, kTileRows}, {64, 64, 64, 64, 64, 64, 64, 64}};
    }

    const bool is_int8_;
    const bool keeps_tiles_;  // all of a segment, for they pass several times
    const int head_dim_;
    int num_keys_ = 0, num_gathered_ = 0, num_widened_ = 0;  // keys; tiles of values, of keys
    const int64_t row_bytes_;                                // from a pair of dimensions of a key to the next
    const KVLayout& kv_;
    MatrixTile& room_;
    MatrixUnit unit_;
};

}  // namespace kvist::KVIST_ISA
