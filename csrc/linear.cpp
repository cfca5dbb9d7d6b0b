// The quantized linear kernel. One program shape for all formats: per group, expand the tile's weights to unsigned bytes in
// registers, take integer dot products with each row, and apply scale and minimum once per group:
//   acc = fma(d, float(sum u*x - offset * sum x) * scale_x, acc);  acc = fma(m, scale_x * sum x, acc)
// Integer sums are exact and the float steps run in group order, so every instruction set gives the same bits.
#include "linear.h"

#include "simd.h"

#include <algorithm>
#include <type_traits>

namespace kvist::KVIST_ISA {
namespace {

// ---- 32 x 16 unsigned bytes and how to multiply them with rows ----------------------------------------------------

#if defined(__AVX512VNNI__)

struct Weights {  // steps 0..7
    __m512i step[8];
};

// Dot products of 4 * num_steps int8 activations at x with the steps from `first`.
template <int kFirst, int kSteps>
inline __m512i dot(const Weights& w, const int8_t* x) {
    __m512i acc = _mm512_setzero_si512();
    for (int s = 0; s < kSteps; s++) {
        int32_t four;
        std::memcpy(&four, x + 4 * (kFirst + s), 4);
        acc = _mm512_dpbusd_epi32(acc, w.step[kFirst + s], _mm512_set1_epi32(four));
    }
    return acc;
}
inline F16 to_float(__m512i dots, int32_t minus) {
    return {_mm512_cvtepi32_ps(_mm512_sub_epi32(dots, _mm512_set1_epi32(minus)))};
}
inline F16 to_float(__m512i dots) { return {_mm512_cvtepi32_ps(dots)}; }
inline Weights expand_nibbles(const uint8_t* u) {
    Weights w;
    const __m512i mask = _mm512_set1_epi8(15);
    for (int s = 0; s < 4; s++) {
        const __m512i both = _mm512_loadu_si512(u + 64 * s);
        w.step[s] = _mm512_and_si512(both, mask);
        w.step[s + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    }
    return w;
}
inline Weights expand_signed(const int8_t* s8) {  // to unsigned by adding 128
    Weights w;
    for (int s = 0; s < 8; s++)
        w.step[s] = _mm512_xor_si512(_mm512_loadu_si512(s8 + 64 * s), _mm512_set1_epi8(static_cast<char>(0x80)));
    return w;
}
inline Weights expand_six(const uint8_t* low, const uint8_t* high) {
    Weights w = expand_nibbles(low);
    const __m512i mask = _mm512_set1_epi8(0x30);
    for (int s = 0; s < 2; s++) {
        const __m512i h = _mm512_loadu_si512(high + 64 * s);
        w.step[s] = _mm512_or_si512(w.step[s], _mm512_and_si512(_mm512_slli_epi16(h, 4), mask));
        w.step[s + 2] = _mm512_or_si512(w.step[s + 2], _mm512_and_si512(_mm512_slli_epi16(h, 2), mask));
        w.step[s + 4] = _mm512_or_si512(w.step[s + 4], _mm512_and_si512(h, mask));
        w.step[s + 6] = _mm512_or_si512(w.step[s + 6], _mm512_and_si512(_mm512_srli_epi16(h, 2), mask));
    }
    return w;
}
inline Weights expand_five(const uint8_t* low, const uint8_t* high) {
    Weights w = expand_nibbles(low);
    const __m512i h = _mm512_loadu_si512(high), bit = _mm512_set1_epi8(16);
    auto put = [&](int s, __m512i bits) { w.step[s] = _mm512_or_si512(w.step[s], _mm512_and_si512(bits, bit)); };
    put(0, _mm512_slli_epi16(h, 4));
    put(1, _mm512_slli_epi16(h, 3));
    put(2, _mm512_slli_epi16(h, 2));
    put(3, _mm512_slli_epi16(h, 1));
    put(4, h);
    put(5, _mm512_srli_epi16(h, 1));
    put(6, _mm512_srli_epi16(h, 2));
    put(7, _mm512_srli_epi16(h, 3));
    return w;
}
constexpr int kMaxRows = 16;

#elif defined(__AVX2__)

struct Weights {
    __m256i step[8][2];  // [step][outputs 0..7, 8..15]
};
struct Dots {
    __m256i lo, hi;
};

// maddubs adds two products in 16 bits; `kMax` tells how many such sums fit before widening.
template <int kFirst, int kSteps, int kMax>
inline Dots dot_bounded(const Weights& w, const int8_t* x) {
    constexpr int kPerWiden = 32767 / (2 * kMax * 127);
    static_assert(kPerWiden >= 1 && kPerWiden * 2 * kMax * 127 <= 32767, "16-bit sums would overflow");
    const __m256i ones = _mm256_set1_epi16(1);
    Dots acc = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int begin = 0; begin < kSteps; begin += kPerWiden) {
        __m256i lo = _mm256_setzero_si256(), hi = _mm256_setzero_si256();
        for (int s = begin; s < begin + kPerWiden && s < kSteps; s++) {
            int32_t four;
            std::memcpy(&four, x + 4 * (kFirst + s), 4);
            const __m256i v = _mm256_set1_epi32(four);
            lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(w.step[kFirst + s][0], v));
            hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(w.step[kFirst + s][1], v));
        }
        acc.lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(lo, ones));
        acc.hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(hi, ones));
    }
    return acc;
}
inline F16 to_float(Dots d, int32_t minus) {
    const __m256i m = _mm256_set1_epi32(minus);
    return {_mm256_cvtepi32_ps(_mm256_sub_epi32(d.lo, m)), _mm256_cvtepi32_ps(_mm256_sub_epi32(d.hi, m))};
}
inline F16 to_float(Dots d) { return {_mm256_cvtepi32_ps(d.lo), _mm256_cvtepi32_ps(d.hi)}; }
inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Weights expand_nibbles(const uint8_t* u) {
    Weights w;
    const __m256i mask = _mm256_set1_epi8(15);
    for (int s = 0; s < 4; s++)
        for (int half = 0; half < 2; half++) {
            const __m256i both = load256(u + 64 * s + 32 * half);
            w.step[s][half] = _mm256_and_si256(both, mask);
            w.step[s + 4][half] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
        }
    return w;
}
inline Weights expand_signed(const int8_t* s8) {
    Weights w;
    for (int s = 0; s < 8; s++)
        for (int half = 0; half < 2; half++) w.step[s][half] = load256(s8 + 64 * s + 32 * half);
    return w;
}
inline Weights expand_six(const uint8_t* low, const uint8_t* high) {
    Weights w = expand_nibbles(low);
    const __m256i mask = _mm256_set1_epi8(0x30);
    for (int s = 0; s < 2; s++)
        for (int half = 0; half < 2; half++) {
            const __m256i h = load256(high + 64 * s + 32 * half);
            auto put = [&](int step, __m256i bits) {
                w.step[step][half] = _mm256_or_si256(w.step[step][half], _mm256_and_si256(bits, mask));
            };
            put(s, _mm256_slli_epi16(h, 4));
            put(s + 2, _mm256_slli_epi16(h, 2));
            put(s + 4, h);
            put(s + 6, _mm256_srli_epi16(h, 2));
        }
    return w;
}
inline Weights expand_five(const uint8_t* low, const uint8_t* high) {
    Weights w = expand_nibbles(low);
    const __m256i bit = _mm256_set1_epi8(16);
    for (int half = 0; half < 2; half++) {
        const __m256i h = load256(high + 32 * half);
        auto put = [&](int s, __m256i bits) {
            w.step[s][half] = _mm256_or_si256(w.step[s][half], _mm256_and_si256(bits, bit));
        };
        put(0, _mm256_slli_epi16(h, 4));
        put(1, _mm256_slli_epi16(h, 3));
        put(2, _mm256_slli_epi16(h, 2));
        put(3, _mm256_slli_epi16(h, 1));
        put(4, h);
        put(5, _mm256_srli_epi16(h, 1));
        put(6, _mm256_srli_epi16(h, 2));
        put(7, _mm256_srli_epi16(h, 3));
    }
    return w;
}
// Signed weights: |w| * sign(x, w), at most 128 * 127 * 2 in 16 bits, so every sum is widened at once.
inline Dots dot_signed(const Weights& w, const int8_t* x) {
    static_assert(128 * 127 * 2 <= 32767);
    const __m256i ones = _mm256_set1_epi16(1);
    Dots acc = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int s = 0; s < 8; s++) {
        int32_t four;
        std::memcpy(&four, x + 4 * s, 4);
        const __m256i v = _mm256_set1_epi32(four);
        auto widened = [&](__m256i weights) {
            return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(v, weights)), ones);
        };
        acc.lo = _mm256_add_epi32(acc.lo, widened(w.step[s][0]));
        acc.hi = _mm256_add_epi32(acc.hi, widened(w.step[s][1]));
    }
    return acc;
}
constexpr int kMaxRows = 4;

#else

struct Weights {
    int32_t step[8][kTile][4];
};
struct Dots {
    int32_t v[kTile];
};
template <int kFirst, int kSteps>
inline Dots dot(const Weights& w, const int8_t* x) {
    Dots d = {};
    for (int s = kFirst; s < kFirst + kSteps; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) d.v[n] += w.step[s][n][k] * x[4 * s + k];
    return d;
}
inline F16 to_float(const Dots& d, int32_t minus) {
    return lanes([&](int i) { return static_cast<float>(d.v[i] - minus); });
}
inline F16 to_float(const Dots& d) { return to_float(d, 0); }
inline Weights expand_nibbles(const uint8_t* u) {
    Weights w;
    for (int s = 0; s < 4; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) {
                const uint8_t both = u[64 * s + 4 * n + k];
                w.step[s][n][k] = both & 15;
                w.step[s + 4][n][k] = both >> 4;
            }
    return w;
}
inline Weights expand_signed(const int8_t* s8) {
    Weights w;
    for (int s = 0; s < 8; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) w.step[s][n][k] = s8[64 * s + 4 * n + k];
    return w;
}
inline Weights expand_six(const uint8_t* low, const uint8_t* high) {
    Weights w = expand_nibbles(low);
    for (int s = 0; s < 8; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) {
                const int two = (high[64 * (s % 2) + 4 * n + k] >> (2 * (s / 2))) & 3;
                w.step[s][n][k] |= two << 4;
            }
    return w;
}
inline Weights expand_five(const uint8_t* low, const uint8_t* high) {
    Weights w = expand_nibbles(low);
    for (int s = 0; s < 8; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) w.step[s][n][k] |= ((high[4 * n + k] >> s) & 1) << 4;
    return w;
}
constexpr int kMaxRows = 4;

#endif

// One row's activations of one group.
struct GroupRow {
    const int8_t* q;
    float scale, scaled_sum;
    const int32_t* sum16;
};

// ---- what differs between formats: how a block expands, and its float epilogue ------------------------------------

template <int kMax>
inline auto dot_group(const Weights& w, const int8_t* x) {
#if defined(__AVX512VNNI__) || !defined(__AVX2__)
    return dot<0, 8>(w, x);
#else
    return dot_bounded<0, 8, kMax>(w, x);
#endif
}
template <int kFirst, int kMax>
inline auto dot_half(const Weights& w, const int8_t* x) {
#if defined(__AVX512VNNI__) || !defined(__AVX2__)
    return dot<kFirst, 4>(w, x);
#else
    return dot_bounded<kFirst, 4, kMax>(w, x);
#endif
}

// w = d * (u - kOffset)
template <int kMax, int kOffset>
inline F16 step_offset(const Weights& w, F16 d, const GroupRow& x, F16 acc) {
    return fma(d, mul(to_float(dot_group<kMax>(w, x.q), kOffset * (x.sum16[0] + x.sum16[1])), set1(x.scale)), acc);
}

// w = d * u + m
template <int kMax>
inline F16 step_minimum(const Weights& w, F16 d, F16 m, const GroupRow& x, F16 acc) {
    acc = fma(d, mul(to_float(dot_group<kMax>(w, x.q)), set1(x.scale)), acc);
    return fma(m, set1(x.scaled_sum), acc);
}

struct Q4_0 {
    using Block = BlockQ4_0;
    static constexpr int kGroups = 1;
    static constexpr int kOffset = 8;  // of the unsigned weights
    struct Group {
        Weights w;
        F16 d;
    };
    static Group expand(const Block& b, int) { return {expand_nibbles(b.u), load_half(b.d)}; }
    static F16 step(const Group& g, const GroupRow& x, F16 acc) { return step_offset<15, kOffset>(g.w, g.d, x, acc); }
};

struct Q4_1 {
    using Block = BlockQ4_1;
    static constexpr int kGroups = 1;
    struct Group {
        Weights w;
        F16 d, m;
    };
    static Group expand(const Block& b, int) { return {expand_nibbles(b.u), load_half(b.d), load_half(b.m)}; }
    static F16 step(const Group& g, const GroupRow& x, F16 acc) { return step_minimum<15>(g.w, g.d, g.m, x, acc); }
};

struct Q4_K {
    using Block = BlockQ4_K;
    static constexpr int kGroups = 8;
    using Group = Q4_1::Group;
    static Group expand(const Block& b, int g) {
        return {expand_nibbles(b.u[g]), mul(load_half(b.d), load_uint8(b.scale[g])),
                sub(zero(), mul(load_half(b.dmin), load_uint8(b.min[g])))};
    }
    static F16 step(const Group& g, const GroupRow& x, F16 acc) { return step_minimum<15>(g.w, g.d, g.m, x, acc); }
};

struct Q5_0 {
    using Block = BlockQ5_0;
    static constexpr int kGroups = 1;
    static constexpr int kOffset = 16;  // of the unsigned weights
    using Group = Q4_0::Group;
    static Group expand(const Block& b, int) { return {expand_five(b.u, b.high), load_half(b.d)}; }
    static F16 step(const Group& g, const GroupRow& x, F16 acc) { return step_offset<31, kOffset>(g.w, g.d, x, acc); }
};

struct Q5_1 {
    using Block = BlockQ5_1;
    static constexpr int kGroups = 1;
    using Group = Q4_1::Group;
    static Group expand(const Block& b, int) { return {expand_five(b.u, b.high), load_half(b.d), load_half(b.m)}; }
    static F16 step(const Group& g, const GroupRow& x, F16 acc) { return step_minimum<31>(g.w, g.d, g.m, x, acc); }
};

struct Q5_K {
    using Block = BlockQ5_K;
    static constexpr int kGroups = 8;
    using Group = Q4_1::Group;
    static Group expand(const Block& b, int g) {
        return {expand_five(b.u[g], b.high[g]), mul(load_half(b.d), load_uint8(b.scale[g])),
                sub(zero(), mul(load_half(b.dmin), load_uint8(b.min[g])))};
    }
    static F16 step(const Group& g, const GroupRow& x, F16 acc) { return step_minimum<31>(g.w, g.d, g.m, x, acc); }
};

struct Q6_K {
    using Block = BlockQ6_K;
    static constexpr int kGroups = 8;
    static constexpr int kOffset = 32;
    struct Group {
        Weights w;
        F16 d[2];
    };
    static Group expand(const Block& b, int g) {
        const F16 d = load_half(b.d);
        return {expand_six(b.low[g], b.high[g]), {mul(d, load_int8(b.scale[2 * g])), mul(d, load_int8(b.scale[2 * g + 1]))}};
    }
    static F16 step(const Group& g, const GroupRow& x, F16 acc) {
        acc = fma(g.d[0], mul(to_float(dot_half<0, 63>(g.w, x.q), kOffset * x.sum16[0]), set1(x.scale)), acc);
        return fma(g.d[1], mul(to_float(dot_half<4, 63>(g.w, x.q), kOffset * x.sum16[1]), set1(x.scale)), acc);
    }
};

struct Q8_0 {
    using Block = BlockQ8_0;
    static constexpr int kGroups = 1;
    static constexpr int kOffset = 128;  // of the unsigned weights
    using Group = Q4_0::Group;
    static Group expand(const Block& b, int) { return {expand_signed(b.s), load_half(b.d)}; }
    static F16 step(const Group& g, const GroupRow& x, F16 acc) {
#if defined(__AVX512VNNI__)
        const F16 dots = to_float(dot<0, 8>(g.w, x.q), kOffset * (x.sum16[0] + x.sum16[1]));
#elif defined(__AVX2__)
        const F16 dots = to_float(dot_signed(g.w, x.q));
#else
        const F16 dots = to_float(dot<0, 8>(g.w, x.q));
#endif
        return fma(g.d, mul(dots, set1(x.scale)), acc);
    }
};

// ---- the loop ------------------------------------------------------------------------------------------------------

inline GroupRow group_row(const LinearArgs& a, int64_t row, int g) {
    const int64_t index = row * (a.x.k / kGroup) + g;
    return {a.x.q + row * a.x.k + g * kGroup, a.x.scale[index], a.x.scaled_sum[index], a.x.sum16 + 2 * index};
}

template <class Spec, int kRows>
void tile_rows(const LinearArgs& a, const typename Spec::Block* blocks, int tile, int row) {
    const int num_groups = a.w.k / kGroup;
    F16 acc[kRows];
    for (int r = 0; r < kRows; r++) acc[r] = zero();
    for (int g = 0; g < num_groups; g++) {
        const auto group = Spec::expand(blocks[g / Spec::kGroups], g % Spec::kGroups);
        for (int r = 0; r < kRows; r++) acc[r] = Spec::step(group, group_row(a, row + r, g), acc[r]);
    }
    for (int r = 0; r < kRows; r++) {
        float* y = a.y + (row + r) * a.y_stride + tile * kTile;
        if (a.w.bias) acc[r] = add(acc[r], load(a.w.bias + tile * kTile));
        store(y, a.accumulate ? add(load(y), acc[r]) : acc[r]);
    }
}

#if defined(__AMX_INT8__)

// Sixteen rows at once on the matrix unit: per group one product of [16 rows, 32] by [32, 16 outputs], whose exact integers
// go through the same float steps as everywhere else. The product of the next group runs under those steps. Where halves of a
// group have scales of their own, products half as deep were no faster than vectors: such formats have no path here.
constexpr int kMaxGroups = 512;
constexpr int kRowRun = 64;

struct ExpandedTile {
    alignas(64) uint8_t u[kMaxGroups * 512];
    alignas(64) float d[kMaxGroups][kTile];
    alignas(64) float m[kMaxGroups][kTile];
};
// What the float steps need of sixteen rows in one group, so that each is one broadcast from a fixed place.
struct GroupRows {
    float scale[16];
    float scaled_sum[16];
    int32_t minus[16];  // offset of the weights times the sum of the activations
};
struct MatrixScratch {
    ExpandedTile tile;
    GroupRows groups[kRowRun / 16][kMaxGroups];
};
// One for all formats: a thread's stack and memory pay for it.
MatrixScratch& matrix_scratch() {
    static thread_local MatrixScratch scratch;
    return scratch;
}

template <class Spec>
constexpr bool kOneScale = !std::is_array_v<decltype(Spec::Group::d)>;
template <class Spec>
constexpr bool kHasMinimum = requires(typename Spec::Group group) { group.m; };

template <class Spec>
void expand_tile(const typename Spec::Block* blocks, int num_groups, ExpandedTile& tile) {
    for (int g = 0; g < num_groups; g++) {
        const auto group = Spec::expand(blocks[g / Spec::kGroups], g % Spec::kGroups);
        for (int s = 0; s < 8; s++) _mm512_store_si512(tile.u + 512 * g + 64 * s, group.w.step[s]);
        store(tile.d[g], group.d);
        if constexpr (kHasMinimum<Spec>) store(tile.m[g], group.m);
    }
}

template <class Spec>
void gather_rows(const LinearArgs& a, int row, GroupRows* groups) {
    for (int r = 0; r < 16; r++)
        for (int g = 0; g < a.w.k / kGroup; g++) {
            const GroupRow x = group_row(a, row + r, g);
            groups[g].scale[r] = x.scale;
            if constexpr (kHasMinimum<Spec>) groups[g].scaled_sum[r] = x.scaled_sum;
            else groups[g].minus[r] = Spec::kOffset * (x.sum16[0] + x.sum16[1]);
        }
}

template <class Spec>
void tile_sixteen_rows(const LinearArgs& a, const ExpandedTile& w, const GroupRows* groups, int tile, int row) {
    const int num_groups = a.w.k / kGroup;
    F16 acc[16];
    for (int r = 0; r < 16; r++) acc[r] = zero();
    const int64_t stride = a.x.k;
    const int8_t* x = a.x.q + row * stride;
    alignas(64) int32_t dots[2][16][kTile];
    auto multiply = [&](int g) {
        _tile_zero(0);
        _tile_loadd(1, x + g * kGroup, stride);
        _tile_loadd(2, w.u + g * 512, 64);
        _tile_dpbsud(0, 1, 2);
        _tile_stored(0, dots[g % 2], 64);
    };
    multiply(0);
    for (int g = 0; g < num_groups; g++) {
        if (g + 1 < num_groups) multiply(g + 1);
        const GroupRows& rows = groups[g];
        const F16 d = load(w.d[g]);
        if constexpr (kHasMinimum<Spec>) {
            const F16 m = load(w.m[g]);
            for (int r = 0; r < 16; r++) {
                const F16 sum = to_float(_mm512_load_si512(dots[g % 2][r]));
                acc[r] = fma(m, set1(rows.scaled_sum[r]), fma(d, mul(sum, set1(rows.scale[r])), acc[r]));
            }
        } else {
            for (int r = 0; r < 16; r++) {
                const F16 sum = to_float(_mm512_load_si512(dots[g % 2][r]), rows.minus[r]);
                acc[r] = fma(d, mul(sum, set1(rows.scale[r])), acc[r]);
            }
        }
    }
    for (int r = 0; r < 16; r++) {
        float* y = a.y + (row + r) * a.y_stride + tile * kTile;
        if (a.w.bias) acc[r] = add(acc[r], load(a.w.bias + tile * kTile));
        store(y, a.accumulate ? add(load(y), acc[r]) : acc[r]);
    }
}

void configure_tiles() {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t column_bytes[16] = {64, 32, 64};
        uint8_t rows[16] = {16, 16, 8};
    } config;
    _tile_loadconfig(&config);
}

// Computes rows [row, the returned row) of the tiles, sixteen at a time.
template <class Spec>
int rows_by_sixteen(const LinearArgs& a, int tile_begin, int tile_end, int row, int row_end) {
    const int num_groups = a.w.k / kGroup;
    if (row_end - row < 16 || num_groups > kMaxGroups) return row;
    auto& [expanded, groups] = matrix_scratch();
    configure_tiles();
    while (row_end - row >= 16) {
        const int num_runs = std::min(row_end - row, kRowRun) / 16;
        for (int run = 0; run < num_runs; run++) gather_rows<Spec>(a, row + 16 * run, groups[run]);
        for (int tile = tile_begin; tile < tile_end; tile++) {
            const auto* blocks =
                static_cast<const typename Spec::Block*>(a.w.data) + int64_t{tile} * (num_groups / Spec::kGroups);
            expand_tile<Spec>(blocks, num_groups, expanded);
            asm volatile("" ::: "memory");  // the compiler does not know that tile loads read memory
            for (int run = 0; run < num_runs; run++) tile_sixteen_rows<Spec>(a, expanded, groups[run], tile, row + 16 * run);
        }
        row += 16 * num_runs;
    }
    _tile_release();
    return row;
}

#endif

template <class Spec, int kRows>
int rows_of(const LinearArgs& a, const typename Spec::Block* blocks, int tile, int row, int row_end) {
    for (; row + kRows <= row_end; row += kRows) tile_rows<Spec, kRows>(a, blocks, tile, row);
    if constexpr (kRows > 1) row = rows_of<Spec, kRows / 2>(a, blocks, tile, row, row_end);
    return row;
}

template <class Spec>
void linear_tiles(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
#if defined(__AMX_INT8__)
    if constexpr (kOneScale<Spec>) row_begin = rows_by_sixteen<Spec>(a, tile_begin, tile_end, row_begin, row_end);
#endif
    const int blocks_per_tile = a.w.k / (kGroup * Spec::kGroups);
    for (int tile = tile_begin; tile < tile_end; tile++) {
        const auto* blocks = static_cast<const typename Spec::Block*>(a.w.data) + int64_t{tile} * blocks_per_tile;
        rows_of<Spec, kMaxRows>(a, blocks, tile, row_begin, row_end);
    }
}

}  // namespace

void linear(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    switch (a.w.format) {
        case Format::q4_0: return linear_tiles<Q4_0>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q4_1: return linear_tiles<Q4_1>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q4_k: return linear_tiles<Q4_K>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q5_0: return linear_tiles<Q5_0>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q5_1: return linear_tiles<Q5_1>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q5_k: return linear_tiles<Q5_K>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q6_k: return linear_tiles<Q6_K>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q8_0: return linear_tiles<Q8_0>(a, tile_begin, tile_end, row_begin, row_end);
        default: return;
    }
}

}  // namespace kvist::KVIST_ISA
