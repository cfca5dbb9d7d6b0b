// Attention's products in integers, over int8 keys and values. Queries and softmax weights are rounded to 15 bits, held as two
// bytes (number = 128 * high + low), so that nearly all that is lost was lost when keys and values were rounded into the cache.
// All sums are exact: every instruction set gives the same bits.
#pragma once

#include "attention_tile.h"

#include <algorithm>

namespace kvist::KVIST_ISA {

constexpr float kLargest15 = 16256.0f;  // 127 * 128
constexpr float kSmallestWeight = 1e-30f;

// Sixteen 32-bit sums of four products each.
#if defined(__AVX512F__)
constexpr int kKeyBias = 128;  // keys are held unsigned, as the multiply-add wants one side
struct Sums16 {
    __m512i v;
};
inline Sums16 no_sums() { return {_mm512_setzero_si512()}; }
inline Sums16 load_quads(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Sums16 spread(int32_t quad) { return {_mm512_set1_epi32(quad)}; }
inline Sums16 dot_unsigned(Sums16 sums, Sums16 a, Sums16 b) { return {_mm512_dpbusd_epi32(sums.v, a.v, b.v)}; }
inline Sums16 dot_key(Sums16 sums, Sums16 key, Sums16 query) { return dot_unsigned(sums, key, query); }
inline F16 combine(Sums16 high, Sums16 low, int32_t minus) {
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high.v, 7), low.v);
    return {_mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(minus)))};
}
#elif defined(__AVX2__)
constexpr int kKeyBias = 0;
struct Sums16 {
    __m256i lo, hi;
};
inline Sums16 no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Sums16 load_quads(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline Sums16 spread(int32_t quad) { return {_mm256_set1_epi32(quad), _mm256_set1_epi32(quad)}; }
// The unsigned side is at most 127: pairs of products fit 16 bits.
inline __m256i dot_unsigned8(__m256i sums, __m256i a, __m256i b) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
inline Sums16 dot_unsigned(Sums16 sums, Sums16 a, Sums16 b) {
    return {dot_unsigned8(sums.lo, a.lo, b.lo), dot_unsigned8(sums.hi, a.hi, b.hi)};
}
inline Sums16 dot_key(Sums16 sums, Sums16 key, Sums16 query) {
    const __m256i size = _mm256_abs_epi8(query.lo);  // both halves of `query` are the same
    return {dot_unsigned8(sums.lo, size, _mm256_sign_epi8(key.lo, query.lo)),
            dot_unsigned8(sums.hi, size, _mm256_sign_epi8(key.hi, query.lo))};
}
inline __m256 combine8(__m256i high, __m256i low) {
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(high, 7), low));
}
inline F16 combine(Sums16 high, Sums16 low, int32_t) { return {combine8(high.lo, low.lo), combine8(high.hi, low.hi)}; }
#else
constexpr int kKeyBias = 0;
struct Sums16 {
    int32_t v[kLanes];  // sums, or four bytes in each
};
inline Sums16 no_sums() { return {}; }
inline Sums16 load_quads(const uint8_t* p) {
    Sums16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline Sums16 spread(int32_t quad) {
    Sums16 r;
    std::fill_n(r.v, kLanes, quad);
    return r;
}
template <class A>
inline Sums16 dot_as(Sums16 sums, const Sums16& a, const Sums16& b) {
    A x[4 * kLanes];
    int8_t y[4 * kLanes];
    std::memcpy(x, a.v, sizeof x);
    std::memcpy(y, b.v, sizeof y);
    for (int i = 0; i < kLanes; i++)
        for (int j = 0; j < 4; j++) sums.v[i] += x[4 * i + j] * y[4 * i + j];
    return sums;
}
inline Sums16 dot_unsigned(Sums16 sums, Sums16 a, Sums16 b) { return dot_as<uint8_t>(sums, a, b); }
inline Sums16 dot_key(Sums16 sums, Sums16 key, Sums16 query) { return dot_as<int8_t>(sums, key, query); }
inline F16 combine(const Sums16& high, const Sums16& low, int32_t) {
    return lanes([&](int i) { return static_cast<float>(128 * high.v[i] + low.v[i]); });
}
#endif

// 64 integers as bytes, at once: a matrix unit's loads wait for bytes that were stored in parts.
inline void store_tile_row(uint8_t* p, const F16* numbers) {
    static_assert(kTileVectors == 4);
#if defined(__AVX512F__)
    __m128i parts[4];
    for (int c = 0; c < 4; c++) parts[c] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(numbers[c].v));
    const __m512i low = _mm512_inserti32x4(_mm512_castsi128_si512(parts[0]), parts[1], 1);
    _mm512_store_si512(p, _mm512_inserti32x4(_mm512_inserti32x4(low, parts[2], 2), parts[3], 3));
#else
    for (int c = 0; c < kTileVectors; c++) store_int8(reinterpret_cast<int8_t*>(p) + c * kLanes, numbers[c]);
#endif
}

inline int32_t quad_at(const void* p) {
    int32_t quad;
    std::memcpy(&quad, p, 4);
    return quad;
}

struct IntegerTile {
    // A matrix unit's row holds 64 bytes: heads are filled up to that.
    alignas(64) int8_t q[kMaxQueries + 16][2][kMaxHeadDim];            // high, low
    alignas(64) uint8_t k[kTileVectors][kMaxHeadDim / 4][4 * kLanes];  // [16 keys][head_dim / 4][key][4], plus kKeyBias
    alignas(64) int8_t v[kTileKeys / 4][4 * kMaxHeadDim];              // [keys / 4][head_dim][4]
    alignas(64) uint8_t weights[2][16][kTileKeys];                     // high, low
    alignas(64) int32_t dots[4][16][kLanes];
    alignas(64) float key_scales[kTileKeys], value_scales[kTileKeys];
    float q_scale[kMaxQueries];
    int32_t q_bias[kMaxQueries];
    float step[16];
};

class IntegerMath {
   public:
#if defined(__AMX_INT8__)
    static constexpr int kRows = 16;
#else
    static constexpr int kRows = 6;
#endif
    static constexpr int kVectors = 2;  // of keys or values at once

    explicit IntegerMath(const AttentionArgs& a, int num_queries)
        : kv_(a.kv), t_(scratch<IntegerTile>()), by_matrix_(kRows > 6 && num_queries > 6) {
        if (by_matrix_) configure_matrix();
    }
    ~IntegerMath() {
        if (by_matrix_) release_matrix();
    }
    IntegerMath(const IntegerMath&) = delete;
    IntegerMath& operator=(const IntegerMath&) = delete;

    // Puts query i at 15 bits; scale is applied afterwards.
    void prepare_query(int i, const float* q, float scale) {
        IntegerTile& t = t_;
        const int head_dim = kv_.head_dim;
        F16 top = zero(), poison = zero();
        for (int d = 0; d < head_dim; d += kLanes) {
            top = max(top, abs(load(q + d)));
            poison = fma(load(q + d), zero(), poison);
        }
        const bool is_finite = reduce_add(poison) == 0.0f;
        const float largest = reduce_max(top);
        const float inverse = is_finite && largest > kSmallestWeight ? kLargest15 / largest : 0.0f;
        t.q_scale[i] = is_finite ? largest / kLargest15 * scale : NAN;
        F16 sum = zero();  // exact: below 2^24
        for (int d = 0; d < head_dim; d += kLanes) {
            const F16 number = round(mul(is_finite ? load(q + d) : zero(), set1(inverse)));
            const F16 high = floor(fma(number, set1(1.0f / 128), set1(0.5f)));
            sum = add(sum, number);
            store_int8(t.q[i][0] + d, high);
            store_int8(t.q[i][1] + d, fma(high, set1(-128.0f), number));
        }
        for (int limb = 0; limb < 2; limb++)
            std::fill(t.q[i][limb] + head_dim, t.q[i][limb] + (head_dim + 63) / 64 * 64, int8_t{0});
        t.q_bias[i] = kKeyBias * static_cast<int32_t>(reduce_add(sum));
    }

    void load_tile(const int32_t* block_table, int kv_head, int first, int num_keys) {
        IntegerTile& t = t_;
        const KVLayout& kv = kv_;
        const int head_dim = kv.head_dim;
        const int64_t scales = int64_t{head_dim} * kv.block_size;
        for (int begin = 0; begin < num_keys; begin += kLanes) {
            const int key = first + begin, slot = key % kv.block_size, count = std::min(kLanes, num_keys - begin);
            const uint8_t *keys = kv.keys(block_table, key, kv_head), *values = kv.values(block_table, key, kv_head);
            for (int quad = 0; quad < head_dim / 4; quad++) {
                const uint8_t* from = keys + 4 * (int64_t{quad} * kv.block_size + slot);
                uint8_t* to = t.k[begin / kLanes][quad];
#if defined(__AVX512F__)
                _mm512_store_si512(to, _mm512_xor_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(-128)));
#else
                std::memcpy(to, from, 4 * kLanes);
#endif
            }
            for (int quad = 0; quad < kLanes / 4; quad++)
                std::memcpy(t.v[begin / 4 + quad], values + int64_t{slot + 4 * quad} * head_dim, 4 * head_dim);
            std::memcpy(t.key_scales + begin, keys + scales + 4 * slot, sizeof(float) * kLanes);
            std::memcpy(t.value_scales + begin, values + scales + 4 * slot, sizeof(float) * count);
            std::fill(t.value_scales + begin + count, t.value_scales + begin + kLanes, 0.0f);  // never written
        }
    }

    template <int kCount>
    void scores_block(int first_query, int vector, int head_dim, float* const* scores) {
        IntegerTile& t = t_;
        Sums16 high[kCount][kVectors], low[kCount][kVectors];
        for (int i = 0; i < kCount; i++)
            for (int c = 0; c < kVectors; c++) high[i][c] = low[i][c] = no_sums();
        for (int quad = 0; quad < head_dim / 4; quad++) {
            Sums16 keys[kVectors];
            for (int c = 0; c < kVectors; c++) keys[c] = load_quads(t.k[vector + c][quad]);
            for (int i = 0; i < kCount; i++) {
                const auto& q = t.q[first_query + i];
                const Sums16 q_high = spread(quad_at(q[0] + 4 * quad)), q_low = spread(quad_at(q[1] + 4 * quad));
                for (int c = 0; c < kVectors; c++) {
                    high[i][c] = dot_key(high[i][c], keys[c], q_high);
                    low[i][c] = dot_key(low[i][c], keys[c], q_low);
                }
            }
        }
        for (int i = 0; i < kCount; i++)
            for (int c = 0; c < kVectors; c++)
                store_scores(first_query + i, vector + c, combine(high[i][c], low[i][c], t.q_bias[first_query + i]), scores[i]);
    }

    void store_scores(int query, int vector, F16 dots, float* scores) {
        IntegerTile& t = t_;
        store(scores + vector * kLanes, mul(mul(dots, set1(t.q_scale[query])), load(t.key_scales + vector * kLanes)));
    }

    void scores(int first_query, int rows, int columns, float* const* scores) {
        if (by_matrix_) return scores_by_matrix(kv_.head_dim, first_query, rows, columns, scores);
        for (int vector = 0; vector * kLanes < columns; vector += kVectors) {
            switch (rows) {
                case 1: scores_block<1>(first_query, vector, kv_.head_dim, scores); break;
                case 2: scores_block<2>(first_query, vector, kv_.head_dim, scores); break;
                case 3: scores_block<3>(first_query, vector, kv_.head_dim, scores); break;
                case 4: scores_block<4>(first_query, vector, kv_.head_dim, scores); break;
                case 5: scores_block<5>(first_query, vector, kv_.head_dim, scores); break;
                default: scores_block<6>(first_query, vector, kv_.head_dim, scores);
            }
        }
    }

    // Weights times the values' scales at 15 bits, one step per query.
    void round_weights(int rows, int num_seen, float (*weights)[kTileKeys]) {
        IntegerTile& t = t_;
        const int vectors = (num_seen + kLanes - 1) / kLanes;
        for (int i = 0; i < rows; i++) {
            F16 scaled[kTileVectors], top = zero(), total = zero();
            for (int c = 0; c < vectors; c++) {
                scaled[c] = mul(load(weights[i] + c * kLanes), load(t.value_scales + c * kLanes));
                top = max(top, scaled[c]);
                total = add(total, scaled[c]);
            }
            const float largest = reduce_max(top), sum = reduce_add(total);
            const bool is_finite = sum - sum == 0.0f;
            const float inverse = is_finite && largest > kSmallestWeight ? kLargest15 / largest : 0.0f;
            t.step[i] = is_finite ? largest / kLargest15 : NAN;
            F16 high[kTileVectors], low[kTileVectors];
            for (int c = 0; c < kTileVectors; c++) {
                const F16 number = c < vectors && is_finite ? round(mul(scaled[c], set1(inverse))) : zero();
                high[c] = floor(mul(number, set1(1.0f / 128)));
                low[c] = fma(high[c], set1(-128.0f), number);
            }
            store_tile_row(t.weights[0][i], high);
            store_tile_row(t.weights[1][i], low);
        }
    }

    template <int kCount, int kWide>
    void values_block(int d, int quads, const float* factor, float* const* out) {
        IntegerTile& t = t_;
        Sums16 high[kCount][kWide], low[kCount][kWide];
        for (int i = 0; i < kCount; i++)
            for (int c = 0; c < kWide; c++) high[i][c] = low[i][c] = no_sums();
        for (int quad = 0; quad < quads; quad++) {
            Sums16 values[kWide];
            for (int c = 0; c < kWide; c++)
                values[c] = load_quads(reinterpret_cast<const uint8_t*>(t.v[quad]) + 4 * (d + c * kLanes));
            for (int i = 0; i < kCount; i++) {
                const Sums16 w_high = spread(quad_at(t.weights[0][i] + 4 * quad)),
                             w_low = spread(quad_at(t.weights[1][i] + 4 * quad));
                for (int c = 0; c < kWide; c++) {
                    high[i][c] = dot_unsigned(high[i][c], w_high, values[c]);
                    low[i][c] = dot_unsigned(low[i][c], w_low, values[c]);
                }
            }
        }
        for (int i = 0; i < kCount; i++)
            for (int c = 0; c < kWide; c++)
                store_values(i, combine(high[i][c], low[i][c], 0), factor[i], out[i] + d + c * kLanes);
    }

    void store_values(int i, F16 dots, float factor, float* out) {
        store(out, fma(dots, set1(t_.step[i]), mul(load(out), set1(factor))));
    }

    template <int kCount>
    void values_rows(int head_dim, int quads, const float* factor, float* const* out) {
        int d = 0;
        for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) values_block<kCount, kVectors>(d, quads, factor, out);
        if (d < head_dim) values_block<kCount, 1>(d, quads, factor, out);
    }

    void values(int rows, int num_seen, float (*weights)[kTileKeys], const float* factor, float* const* out) {
        round_weights(rows, num_seen, weights);
        const int head_dim = kv_.head_dim, quads = (num_seen + 3) / 4;
        if (by_matrix_) return values_by_matrix(head_dim, rows, factor, out);
        switch (rows) {
            case 1: return values_rows<1>(head_dim, quads, factor, out);
            case 2: return values_rows<2>(head_dim, quads, factor, out);
            case 3: return values_rows<3>(head_dim, quads, factor, out);
            case 4: return values_rows<4>(head_dim, quads, factor, out);
            case 5: return values_rows<5>(head_dim, quads, factor, out);
            default: return values_rows<6>(head_dim, quads, factor, out);
        }
    }

#if defined(__AMX_INT8__)
    void configure_matrix() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        asm volatile("" : : "r"(&config) : "memory");  // all of it is read, not only what the compiler knows of
        _tile_loadconfig(&config);
    }
    void release_matrix() { _tile_release(); }

    // Two vectors of keys at once: tiles 0 and 1 sum high bytes, 2 and 3 low ones.
    void scores_by_matrix(int head_dim, int first_query, int rows, int columns, float* const* scores) {
        IntegerTile& t = t_;
        for (int vector = 0; vector * kLanes < columns; vector += 2) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            asm volatile("" ::: "memory");  // the compiler does not know that tile loads read memory
            for (int d = 0; d < head_dim; d += 64) {
                _tile_loadd(4, t.q[first_query][0] + d, 2 * kMaxHeadDim);
                _tile_loadd(5, t.q[first_query][1] + d, 2 * kMaxHeadDim);
                _tile_loadd(6, t.k[vector][d / 4], 64);
                _tile_loadd(7, t.k[vector + 1][d / 4], 64);
                _tile_dpbsud(0, 4, 6);
                _tile_dpbsud(1, 4, 7);
                _tile_dpbsud(2, 5, 6);
                _tile_dpbsud(3, 5, 7);
            }
            store_dots();
            for (int i = 0; i < rows; i++)
                for (int c = 0; c < 2; c++) {
                    const Sums16 high = {_mm512_load_si512(t.dots[c][i])}, low = {_mm512_load_si512(t.dots[2 + c][i])};
                    store_scores(first_query + i, vector + c, combine(high, low, t.q_bias[first_query + i]), scores[i]);
                }
        }
    }

    void values_by_matrix(int head_dim, int rows, const float* factor, float* const* out) {
        IntegerTile& t = t_;
        asm volatile("" ::: "memory");
        _tile_loadd(4, t.weights[0], kTileKeys);
        _tile_loadd(5, t.weights[1], kTileKeys);
        for (int d = 0; d < head_dim; d += 2 * kLanes) {  // an odd last vector computes on what lies behind the head
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            _tile_loadd(6, t.v[0] + 4 * d, 4 * kMaxHeadDim);
            _tile_loadd(7, t.v[0] + 4 * d + 64, 4 * kMaxHeadDim);
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
            store_dots();
            for (int i = 0; i < rows; i++)
                for (int c = 0; c < 2 && d + c * kLanes < head_dim; c++) {
                    const Sums16 high = {_mm512_load_si512(t.dots[c][i])}, low = {_mm512_load_si512(t.dots[2 + c][i])};
                    store_values(i, combine(high, low, 0), factor[i], out[i] + d + c * kLanes);
                }
        }
    }

    void store_dots() {
        IntegerTile& t = t_;
        _tile_stored(0, t.dots[0], 64);
        _tile_stored(1, t.dots[1], 64);
        _tile_stored(2, t.dots[2], 64);
        _tile_stored(3, t.dots[3], 64);
        asm volatile("" ::: "memory");
    }
#else
    void configure_matrix() {}
    void release_matrix() {}
    void scores_by_matrix(int, int, int, int, float* const*) {}
    void values_by_matrix(int, int, const float*, float* const*) {}
#endif

    const KVLayout& kv_;
    IntegerTile& t_;
    const bool by_matrix_;
};

}  // namespace kvist::KVIST_ISA
