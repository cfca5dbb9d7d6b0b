// Attention's products in float32. A tile is widened once for all query vectors of a call; when they are few, halves are widened
// in registers on the way, as often as they are used.
#pragma once

#include "attention_tile.h"

#include <algorithm>

namespace kvist::KVIST_ISA {

inline F16 load_kv(KVType type, const uint8_t* p, int64_t element) {
    switch (type) {
        case KVType::f16: return load_half(reinterpret_cast<const uint16_t*>(p) + element);
        default: return load(reinterpret_cast<const float*>(p) + element);
    }
}

// Widens the keys of sixteen slots to [head_dim][kTileKeys].
template <KVType kType>
void widen_keys(const KVLayout& kv, const uint8_t* keys, int slot, float* k) {
    constexpr int kElementBytes = kType == KVType::f32 ? 4 : 2;
    for (int d = 0; d < kv.head_dim; d++)
        store(k + d * kTileKeys, load_kv(kType, keys + slot * kElementBytes, int64_t{d} * kv.block_size));
}

// Widens the values of `count` slots to [count][head_dim].
template <KVType kType>
void widen_values(const KVLayout& kv, const uint8_t* values, int slot, int count, float* v) {
    values += int64_t{slot} * kv.head_dim * (kType == KVType::f32 ? 4 : 2);
    for (int i = 0; i < count * kv.head_dim; i += kLanes) store(v + i, load_kv(kType, values, i));
}

template <>
inline void widen_keys<KVType::bf16>(const KVLayout& kv, const uint8_t* keys, int slot, float* k) {
    for (int d = 0; d < kv.head_dim; d += 2, k += 2 * kTileKeys) {
        const auto* pairs = reinterpret_cast<const uint16_t*>(keys) + d * kv.block_size + 2 * slot;
        store(k, load_bfloat_pairs<0>(pairs));
        store(k + kTileKeys, load_bfloat_pairs<1>(pairs));
    }
}

template <>
inline void widen_values<KVType::bf16>(const KVLayout& kv, const uint8_t* values, int slot, int count, float* v) {
    for (int j = 0; j < count; j++, v += kv.head_dim) {
        const auto* pairs = reinterpret_cast<const uint16_t*>(values) + (slot + j) / 2 * 2 * kv.head_dim;
        for (int d = 0; d < kv.head_dim; d += kLanes)
            store(v + d, j % 2 ? load_bfloat_pairs<1>(pairs + 2 * d) : load_bfloat_pairs<0>(pairs + 2 * d));
    }
}

template <>
inline void widen_keys<KVType::int8>(const KVLayout& kv, const uint8_t* keys, int slot, float* k) {
    const F16 scales = load(reinterpret_cast<const float*>(keys + int64_t{kv.head_dim} * kv.block_size) + slot);
    for (int d = 0; d < kv.head_dim; d += 4, k += 4 * kTileKeys) {
        const auto* quads = reinterpret_cast<const int8_t*>(keys) + d * kv.block_size + 4 * slot;
        store(k, mul(load_quads<0>(quads), scales));
        store(k + kTileKeys, mul(load_quads<1>(quads), scales));
        store(k + 2 * kTileKeys, mul(load_quads<2>(quads), scales));
        store(k + 3 * kTileKeys, mul(load_quads<3>(quads), scales));
    }
}

template <int kIndex>
void widen_value(const int8_t* quads, int head_dim, float scale, float* v) {
    for (int d = 0; d < head_dim; d += kLanes) store(v + d, mul(load_quads<kIndex>(quads + 4 * d), set1(scale)));
}

template <>
inline void widen_values<KVType::int8>(const KVLayout& kv, const uint8_t* values, int slot, int count, float* v) {
    const int head_dim = kv.head_dim;
    const float* scales = reinterpret_cast<const float*>(values + int64_t{head_dim} * kv.block_size) + slot;
    for (int j = 0; j < count; j++, v += head_dim) {
        const auto* quads = reinterpret_cast<const int8_t*>(values) + (slot + j) / 4 * 4 * head_dim;
        switch (j % 4) {
            case 0: widen_value<0>(quads, head_dim, scales[j], v); break;
            case 1: widen_value<1>(quads, head_dim, scales[j], v); break;
            case 2: widen_value<2>(quads, head_dim, scales[j], v); break;
            default: widen_value<3>(quads, head_dim, scales[j], v);
        }
    }
}

// Where a product's right side comes from: sixteen floats of `row` from `column` on.
struct WideRows {
    const float* rows;
    int64_t stride;
    F16 at(int row, int column) const { return load(rows + row * stride + column); }
};
struct HalfKeys {  // row: dimension, column: key
    const uint16_t* keys[kTileVectors];
    int64_t block_size;
    F16 at(int row, int column) const { return load_half(keys[column / kLanes] + row * block_size); }
};
struct HalfValues {  // row: key, column: dimension
    const uint16_t* values[kTileVectors];
    int64_t head_dim;
    F16 at(int row, int column) const { return load_half(values[row / kLanes] + row % kLanes * head_dim + column); }
};

struct LeftSide {  // C [rows, columns] = A [rows, depth] B [depth, columns]; or C = C * factor[row] + A B
    const float* a;
    int64_t stride;
    int depth;
    const float* factor;  // null: C starts at 0
};

// Vectors of B that fit beside `rows` rows of sums.
constexpr int vectors_at_once(int rows) {
#if defined(__AVX512F__)
    return rows > 0 ? 4 : 0;
#else
    return rows > 3 ? 1 : rows > 1 ? 2 : 4;
#endif
}

template <int kCount, int kVectors, class B>
inline void product_block(const LeftSide& left, const B& b, float* const* c, int column) {
    F16 acc[kCount][kVectors];
    for (int i = 0; i < kCount; i++)
        for (int v = 0; v < kVectors; v++)
            acc[i][v] = left.factor ? mul(load(c[i] + column + v * kLanes), set1(left.factor[i])) : zero();
    for (int k = 0; k < left.depth; k++) {
        F16 row[kVectors];
        for (int v = 0; v < kVectors; v++) row[v] = b.at(k, column + v * kLanes);
        for (int i = 0; i < kCount; i++) {
            const F16 a = set1(left.a[i * left.stride + k]);
            for (int v = 0; v < kVectors; v++) acc[i][v] = fma(a, row[v], acc[i][v]);
        }
    }
    for (int i = 0; i < kCount; i++)
        for (int v = 0; v < kVectors; v++) store(c[i] + column + v * kLanes, acc[i][v]);
}

template <int kCount, class B>
void product_rows(const LeftSide& left, const B& b, float* const* c, int columns) {
    constexpr int kVectors = vectors_at_once(kCount);
    int column = 0;
    for (; column + kVectors * kLanes <= columns; column += kVectors * kLanes)
        product_block<kCount, kVectors>(left, b, c, column);
    if constexpr (kVectors == 4) {
        if (columns - column == 3 * kLanes) return product_block<kCount, 3>(left, b, c, column);
        if (columns - column == 2 * kLanes) return product_block<kCount, 2>(left, b, c, column);
    }
    for (; column < columns; column += kLanes) product_block<kCount, 1>(left, b, c, column);
}

template <class B>
void product(const LeftSide& left, const B& b, float* const* c, int rows, int columns) {
    switch (rows) {
        case 1: return product_rows<1>(left, b, c, columns);
        case 2: return product_rows<2>(left, b, c, columns);
        case 3: return product_rows<3>(left, b, c, columns);
        case 4: return product_rows<4>(left, b, c, columns);
        case 5: return product_rows<5>(left, b, c, columns);
        default: return product_rows<6>(left, b, c, columns);
    }
}

struct FloatTile {
    alignas(64) float k[kMaxHeadDim * kTileKeys];    // [head_dim][kTileKeys]
    alignas(64) float v[kTileKeys * kMaxHeadDim];    // [kTileKeys][head_dim]
    alignas(64) float q[kMaxQueries * kMaxHeadDim];  // [query][head_dim], scaled
    const uint8_t *keys[kTileVectors], *values[kTileVectors];
    int slots[kTileVectors], num_keys;
    HalfKeys half_keys;
    HalfValues half_values;
};

class FloatMath {
   public:
    static constexpr int kRows = 6;  // query vectors that share the registers

    explicit FloatMath(const AttentionArgs& a, int num_queries)
        : kv_(a.kv), t_(scratch<FloatTile>()), few_(num_queries <= kRows), halves_(few_ && a.kv.type == KVType::f16) {}

    void prepare_query(int i, const float* q, float scale) {
        for (int d = 0; d < kv_.head_dim; d += kLanes) store(t_.q + i * kv_.head_dim + d, mul(load(q + d), set1(scale)));
    }

    void load_tile(const int32_t* block_table, int kv_head, int first, int num_keys) {
        t_.num_keys = num_keys;
        for (int c = 0; c * kLanes < num_keys; c++) {
            const int key = first + c * kLanes;
            t_.slots[c] = key % kv_.block_size;
            t_.keys[c] = kv_.keys(block_table, key, kv_head);
            t_.values[c] = kv_.values(block_table, key, kv_head);
            t_.half_keys.keys[c] = reinterpret_cast<const uint16_t*>(t_.keys[c]) + t_.slots[c];
            t_.half_values.values[c] = reinterpret_cast<const uint16_t*>(t_.values[c]) + int64_t{t_.slots[c]} * kv_.head_dim;
        }
        t_.half_keys.block_size = kv_.block_size;
        t_.half_values.head_dim = kv_.head_dim;
        if (halves_) return;
        widen_tile_keys();
        if (!few_) widen_tile_values(t_.v);
    }

    void scores(int first_query, int rows, int columns, float* const* scores) {
        const LeftSide left = {t_.q + first_query * kv_.head_dim, kv_.head_dim, kv_.head_dim, nullptr};
        if (halves_) product(left, t_.half_keys, scores, rows, columns);
        else product(left, WideRows{t_.k, kTileKeys}, scores, rows, columns);
    }

    void values(int rows, int num_seen, float (*weights)[kTileKeys], const float* factor, float* const* out) {
        const LeftSide left = {weights[0], kTileKeys, num_seen, factor};
        if (halves_) return product(left, t_.half_values, out, rows, kv_.head_dim);
        if (few_) widen_tile_values(t_.k);  // where the keys were: both would crowd the first-level cache
        product(left, WideRows{few_ ? t_.k : t_.v, kv_.head_dim}, out, rows, kv_.head_dim);
    }

   private:
    void widen_tile_keys() {
        for (int c = 0; c * kLanes < t_.num_keys; c++) {
            float* k = t_.k + c * kLanes;
            switch (kv_.type) {
                case KVType::f32: widen_keys<KVType::f32>(kv_, t_.keys[c], t_.slots[c], k); break;
                case KVType::f16: widen_keys<KVType::f16>(kv_, t_.keys[c], t_.slots[c], k); break;
                case KVType::bf16: widen_keys<KVType::bf16>(kv_, t_.keys[c], t_.slots[c], k); break;
                case KVType::int8: widen_keys<KVType::int8>(kv_, t_.keys[c], t_.slots[c], k); break;
            }
        }
    }
    void widen_tile_values(float* to) {
        for (int c = 0; c * kLanes < t_.num_keys; c++) {
            const int count = std::min(kLanes, t_.num_keys - c * kLanes);  // later slots were never written
            float* v = to + c * kLanes * kv_.head_dim;
            switch (kv_.type) {
                case KVType::f32: widen_values<KVType::f32>(kv_, t_.values[c], t_.slots[c], count, v); break;
                case KVType::f16: widen_values<KVType::f16>(kv_, t_.values[c], t_.slots[c], count, v); break;
                case KVType::bf16: widen_values<KVType::bf16>(kv_, t_.values[c], t_.slots[c], count, v); break;
                case KVType::int8: widen_values<KVType::int8>(kv_, t_.values[c], t_.slots[c], count, v); break;
            }
        }
    }

    const KVLayout& kv_;
    FloatTile& t_;
    const bool few_, halves_;
};

}  // namespace kvist::KVIST_ISA
