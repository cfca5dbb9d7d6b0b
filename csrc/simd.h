// Sixteen float lanes, on any instruction set. Every kernel is written in these lanes, so that its float arithmetic -
// operations, order, roundings - is the same for the portable build and for every vector width: results are bit-identical.
// Each kernel file is compiled once per instruction set (see KVIST_ISA in CMakeLists.txt); fused multiply-add is always
// asked for by name (fma), never left to the compiler (-ffp-contract=off).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace kvist::KVIST_ISA {

constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct F16 {
    __m512 v;
};
inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
inline F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F16 floor(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
// a < b ? x : y, lane by lane
inline F16 select_lt(F16 a, F16 b, F16 x, F16 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// 2^n for integral n in [-126, 127]
inline F16 exp2_int(F16 n) {
    const __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(i, 23))};
}
// a - floor(a), rounded; 0 for an infinite a
inline F16 fraction(F16 a) { return {_mm512_reduce_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
// a * 2^floor(b), rounded once
inline F16 scale_exp2_floor(F16 a, F16 b) { return {_mm512_scalef_ps(a.v, b.v)}; }
// The float whose bits are a's, shifted left by 23
inline F16 shift_to_exponent(F16 a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))}; }
inline F16 load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline void store_half(uint16_t* p, F16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F16 load_bfloat(const uint16_t* p) {
    const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
// To the nearest bfloat16, even on ties; numbers below the normal ones become 0, NaN stays NaN.
inline __m256i to_bfloat(F16 a) {
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh(a.v);
#else
    const __m512i bits = _mm512_castps_si512(a.v), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000), _MM_CMPINT_NLE);
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_tiny = _mm512_cmp_epi32_mask(magnitude, _mm512_set1_epi32(0x800000), _MM_CMPINT_LT);
    rounded = _mm512_mask_sub_epi32(rounded, is_tiny, bits, magnitude);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}
inline void store_bfloat(uint16_t* p, F16 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bfloat(a)); }
// Numbers kIndex, kIndex + 2, ... of 32
template <int kIndex>
inline F16 load_bfloat_pairs(const uint16_t* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    return {_mm512_castsi512_ps(kIndex ? _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)) : _mm512_slli_epi32(pairs, 16))};
}
// Numbers of a, then those of b; see store_bfloat
inline void store_bfloat2(uint16_t* p, F16 a, F16 b) {
#if defined(__AVX512BF16__)
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v));
#else
    store_bfloat(p, a);
    store_bfloat(p + kLanes, b);
#endif
}
// Numbers of a and b in turn; see store_bfloat
inline void store_bfloat_pairs(uint16_t* p, F16 a, F16 b) {
    const __m512i low = _mm512_cvtepu16_epi32(to_bfloat(a)), high = _mm512_cvtepu16_epi32(to_bfloat(b));
    _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
inline F16 load_int32(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
inline F16 load_int8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F16 load_uint8(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Numbers kIndex, kIndex + 4, ... of 64
template <int kIndex>
inline F16 load_quads(const int8_t* p) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_loadu_si512(p), 24 - 8 * kIndex);
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 24))};
}
// lanes are integral and within int8
inline void store_int8(int8_t* p, F16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

#elif defined(__AVX2__)

struct F16 {
    __m256 lo, hi;
};
inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F16 abs(F16 a) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
inline F16 round(F16 a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline F16 floor(F16 a) { return {_mm256_floor_ps(a.lo), _mm256_floor_ps(a.hi)}; }
inline F16 select_lt(F16 a, F16 b, F16 x, F16 y) {
    return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline __m256 exp2_int8lanes(__m256 n) {
    const __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
inline F16 exp2_int(F16 n) { return {exp2_int8lanes(n.lo), exp2_int8lanes(n.hi)}; }
inline __m256 shift_to_exponent8(__m256 a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23)); }
inline F16 shift_to_exponent(F16 a) { return {shift_to_exponent8(a.lo), shift_to_exponent8(a.hi)}; }
inline F16 load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store_half(uint16_t* p, F16 a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, mode));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, mode));
}
inline __m256 load_bfloat8(const uint16_t* p) {
    const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
inline F16 load_bfloat(const uint16_t* p) { return {load_bfloat8(p), load_bfloat8(p + 8)}; }
template <int kIndex>
inline __m256 load_bfloat_pairs8(const uint16_t* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(kIndex ? _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)) : _mm256_slli_epi32(pairs, 16));
}
template <int kIndex>
inline F16 load_bfloat_pairs(const uint16_t* p) {
    return {load_bfloat_pairs8<kIndex>(p), load_bfloat_pairs8<kIndex>(p + 16)};
}
inline F16 load_int32(const int32_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
            _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8)))};
}
inline F16 load_int8(const int8_t* p) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}
inline F16 load_uint8(const uint8_t* p) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(b, 8)))};
}
template <int kIndex>
inline __m256 load_quads8(const int8_t* p) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 24 - 8 * kIndex);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(shifted, 24));
}
template <int kIndex>
inline F16 load_quads(const int8_t* p) {
    return {load_quads8<kIndex>(p), load_quads8<kIndex>(p + 32)};
}
inline void store_int8(int8_t* p, F16 a) {
    const __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    const __m256i s = _mm256_permute4x64_epi64(w, 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1)));
}

#else

struct F16 {
    float v[kLanes];
};
template <class Fn>
inline F16 lanes(Fn fn) {
    F16 r;
    for (int i = 0; i < kLanes; i++) r.v[i] = fn(i);
    return r;
}
// clang-format off: one short line each
inline F16 zero() { return lanes([](int) { return 0.0f; }); }
inline F16 set1(float x) { return lanes([=](int) { return x; }); }
inline F16 load(const float* p) { return lanes([=](int i) { return p[i]; }); }
inline void store(float* p, F16 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F16 add(F16 a, F16 b) { return lanes([&](int i) { return a.v[i] + b.v[i]; }); }
inline F16 sub(F16 a, F16 b) { return lanes([&](int i) { return a.v[i] - b.v[i]; }); }
inline F16 mul(F16 a, F16 b) { return lanes([&](int i) { return a.v[i] * b.v[i]; }); }
inline F16 div(F16 a, F16 b) { return lanes([&](int i) { return a.v[i] / b.v[i]; }); }
inline F16 fma(F16 a, F16 b, F16 c) { return lanes([&](int i) { return std::fmaf(a.v[i], b.v[i], c.v[i]); }); }
inline F16 max(F16 a, F16 b) { return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline F16 abs(F16 a) { return lanes([&](int i) { return std::fabs(a.v[i]); }); }
inline F16 round(F16 a) { return lanes([&](int i) { return std::nearbyintf(a.v[i]); }); }
inline F16 floor(F16 a) {
    return lanes([&](int i) { return std::floor(a.v[i]); });
}
inline F16 select_lt(F16 a, F16 b, F16 x, F16 y) {
    return lanes([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
inline F16 exp2_int(F16 n) {
    return lanes([&](int i) { return std::isnan(n.v[i]) ? 1.0f : std::ldexp(1.0f, static_cast<int>(n.v[i])); });
}
inline F16 shift_to_exponent(F16 a) {
    return lanes([&](int i) {
        uint32_t bits;
        std::memcpy(&bits, &a.v[i], 4);
        bits <<= 23;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    });
}
inline float half_to_float(uint16_t h) {
    _Float16 x;
    std::memcpy(&x, &h, 2);
    return static_cast<float>(x);
}
inline F16 load_half(const uint16_t* p) { return lanes([=](int i) { return half_to_float(p[i]); }); }
inline void store_half(uint16_t* p, F16 a) {
    for (int i = 0; i < kLanes; i++) {
        const _Float16 x = static_cast<_Float16>(a.v[i]);
        std::memcpy(p + i, &x, 2);
    }
}
inline F16 load_bfloat(const uint16_t* p) {
    return lanes([=](int i) {
        const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    });
}
inline F16 load_int32(const int32_t* p) { return lanes([=](int i) { return static_cast<float>(p[i]); }); }
inline F16 load_int8(const int8_t* p) { return lanes([=](int i) { return static_cast<float>(p[i]); }); }
inline F16 load_uint8(const uint8_t* p) { return lanes([=](int i) { return static_cast<float>(p[i]); }); }
// clang-format on
template <int kIndex>
inline F16 load_quads(const int8_t* p) {
    return lanes([=](int i) { return static_cast<float>(p[4 * i + kIndex]); });
}
template <int kIndex>
inline F16 load_bfloat_pairs(const uint16_t* p) {
    return lanes([=](int i) {
        const uint32_t bits = static_cast<uint32_t>(p[2 * i + kIndex]) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    });
}
inline void store_int8(int8_t* p, F16 a) {
    for (int i = 0; i < kLanes; i++) p[i] = static_cast<int8_t>(a.v[i]);
}

#endif

#if !defined(__AVX512F__)
template <class Fn>
inline F16 lane_by_lane(F16 a, F16 b, Fn fn) {
    float x[kLanes], y[kLanes];
    store(x, a), store(y, b);
    for (int i = 0; i < kLanes; i++) x[i] = fn(x[i], y[i]);
    return load(x);
}
inline F16 fraction(F16 a) {
    return lane_by_lane(a, a, [](float x, float) { return std::isinf(x) ? 0.0f : x - std::floor(x); });
}
inline F16 scale_exp2_floor(F16 a, F16 b) {
    return lane_by_lane(a, b, [](float x, float y) {
        if (std::isnan(y)) return y;
        return std::ldexp(x, static_cast<int>(std::fmax(-999.0f, std::fmin(std::floor(y), 999.0f))));
    });
}
inline void store_bfloat(uint16_t* p, F16 a) {
    float x[kLanes];
    store(x, a);
    for (int i = 0; i < kLanes; i++) {
        uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        const uint32_t magnitude = bits & 0x7fffffff;
        if (magnitude > 0x7f800000) bits |= 0x400000;
        else if (magnitude < 0x800000) bits -= magnitude;
        else bits += 0x7fff + (bits >> 16 & 1);
        p[i] = static_cast<uint16_t>(bits >> 16);
    }
}
inline void store_bfloat2(uint16_t* p, F16 a, F16 b) {
    store_bfloat(p, a);
    store_bfloat(p + kLanes, b);
}
inline void store_bfloat_pairs(uint16_t* p, F16 a, F16 b) {
    uint16_t even[kLanes], odd[kLanes];
    store_bfloat(even, a);
    store_bfloat(odd, b);
    for (int i = 0; i < kLanes; i++) p[2 * i] = even[i], p[2 * i + 1] = odd[i];
}
#endif

// Fixed tree: lanes 8 apart, then 4, 2, 1.
inline float reduce_add(F16 a) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    const __m256 lo = _mm512_castps512_ps256(a.v), hi = _mm512_extractf32x8_ps(a.v, 1);
#else
    const __m256 lo = a.lo, hi = a.hi;
#endif
    const __m256 eight = _mm256_add_ps(lo, hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
#else
    float t[kLanes];
    store(t, a);
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++) t[i] += t[i + step];
    return t[0];
#endif
}
// Exact in any order.
inline float reduce_max(F16 a) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(a.v);
#elif defined(__AVX2__)
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
#else
    float top = a.v[0];
    for (int i = 1; i < kLanes; i++) top = top > a.v[i] ? top : a.v[i];
    return top;
#endif
}
// Sum of 16 bytes.
inline int32_t sum_int8(const int8_t* p) {
#if defined(__AVX2__)
    // Sums of absolute differences add unsigned bytes: shift by 128 and take it off again.
    const __m128i shifted = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(-128));
    const __m128i sums = _mm_sad_epu8(shifted, _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 128 * kLanes;
#else
    int32_t sum = 0;
    for (int i = 0; i < kLanes; i++) sum += p[i];
    return sum;
#endif
}

// e^x within 2 ulp; 0 below -87.3, clamped above 88, NaN stays NaN (max returns its second operand for a NaN in it).
// Range reduction by Cody and Waite, minimax polynomial of degree 6.
inline F16 exp(F16 x) {
    const F16 low = set1(-87.3f);
    const F16 clamped = select_lt(set1(88.0f), x, set1(88.0f), max(low, x));
    const F16 n = round(mul(clamped, set1(1.44269504f)));
    F16 r = fma(n, set1(-0.693145752f), clamped);
    r = fma(n, set1(-1.42860677e-6f), r);
    F16 p = set1(1.38888889e-3f);
    p = fma(p, r, set1(8.33333333e-3f));
    p = fma(p, r, set1(4.16666667e-2f));
    p = fma(p, r, set1(1.66666667e-1f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return select_lt(x, low, zero(), mul(p, exp2_int(n)));
}

// 2^x for x <= 0, within 2 ulp and 1 for 0; 0 below -126; NaN stays NaN. The sum with 1.5 * 2^23 + 127 rounds x to an integer
// and leaves that integer, biased as an exponent, in the lowest bits. Minimax polynomial of degree 5 with a first term of 1.
inline F16 exp2_negative(F16 x) {
    const F16 shift = set1(12582912.0f + 127.0f);
    const F16 shifted = add(x, shift);
    const F16 r = sub(x, sub(shifted, shift));
    F16 p = set1(0.0013264727f);
    p = fma(p, r, set1(0.009671513f));
    p = fma(p, r, set1(0.055507336f));
    p = fma(p, r, set1(0.24022242f));
    p = fma(p, r, set1(0.693147f));
    p = fma(p, r, set1(1.0f));
    return select_lt(x, set1(-126.0f), zero(), mul(p, shift_to_exponent(shifted)));
}

}  // namespace kvist::KVIST_ISA
