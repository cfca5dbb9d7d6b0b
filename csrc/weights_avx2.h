// A group's weights in sixteen 256-bit vectors, multiplied in 16 bits.
#pragma once

#include "packed.h"
#include "simd.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

struct Weights {
    __m256i step[8][2];  // [step][outputs 0..7, 8..15]
};
struct Dots {
    __m256i lo, hi;
};

// out[r]: dot products of row r's activations, 4 * kSteps of them, with the steps from kFirst; row r stands at x + r * stride.
// maddubs adds two products in 16 bits; `kMax`, the largest weight, tells how many such sums fit before widening.
template <int kRows, int kFirst, int kSteps, int kMax>
inline void dot_rows(const Weights& w, const int8_t* x, int64_t stride, Dots* out) {
    constexpr int kPerWiden = std::min(kSteps, 32767 / (2 * kMax * 127));
    static_assert(kPerWiden >= 1 && kPerWiden * 2 * kMax * 127 <= 32767, "16-bit sums would overflow");
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < kRows; r++) out[r] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int begin = 0; begin < kSteps; begin += kPerWiden) {
        __m256i lo[kRows], hi[kRows];
        for (int r = 0; r < kRows; r++) lo[r] = hi[r] = _mm256_setzero_si256();
        for (int s = kFirst + begin; s < kFirst + std::min(begin + kPerWiden, kSteps); s++)
            for (int r = 0; r < kRows; r++) {
                int32_t four;
                std::memcpy(&four, x + r * stride + 4 * s, 4);
                const __m256i v = _mm256_set1_epi32(four);
                lo[r] = _mm256_add_epi16(lo[r], _mm256_maddubs_epi16(w.step[s][0], v));
                hi[r] = _mm256_add_epi16(hi[r], _mm256_maddubs_epi16(w.step[s][1], v));
            }
        for (int r = 0; r < kRows; r++) {
            out[r].lo = _mm256_add_epi32(out[r].lo, _mm256_madd_epi16(lo[r], ones));
            out[r].hi = _mm256_add_epi32(out[r].hi, _mm256_madd_epi16(hi[r], ones));
        }
    }
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
template <int kRows>
inline void dot_signed(const Weights& w, const int8_t* x, int64_t stride, Dots* out) {
    static_assert(128 * 127 * 2 <= 32767);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < kRows; r++) out[r] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int s = 0; s < 8; s++) {
        const __m256i lo = _mm256_abs_epi8(w.step[s][0]), hi = _mm256_abs_epi8(w.step[s][1]);
        for (int r = 0; r < kRows; r++) {
            int32_t four;
            std::memcpy(&four, x + r * stride + 4 * s, 4);
            const __m256i v = _mm256_set1_epi32(four);
            const __m256i a = _mm256_maddubs_epi16(lo, _mm256_sign_epi8(v, w.step[s][0]));
            const __m256i b = _mm256_maddubs_epi16(hi, _mm256_sign_epi8(v, w.step[s][1]));
            out[r].lo = _mm256_add_epi32(out[r].lo, _mm256_madd_epi16(a, ones));
            out[r].hi = _mm256_add_epi32(out[r].hi, _mm256_madd_epi16(b, ones));
        }
    }
}
constexpr int kMaxRows = 4;     // that share an unfolding in registers
constexpr int kCachedRows = 3;  // from an unfolded tile: as many sums as registers hold

}  // namespace
}  // namespace kvist::KVIST_ISA
