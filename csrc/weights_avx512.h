// A group's weights in eight 512-bit registers, multiplied by VNNI.
#pragma once

#include "packed.h"
#include "simd.h"

namespace kvist::KVIST_ISA {
namespace {

struct Weights {  // steps 0..7
    __m512i step[8];
};

using Dots = __m512i;

// out[r]: dot products of row r's activations, 4 * kSteps of them, with the steps from kFirst; row r stands at x + r * stride.
template <int kRows, int kFirst, int kSteps, int kMax>
inline void dot_rows(const Weights& w, const int8_t* x, int64_t stride, Dots* out) {
    for (int r = 0; r < kRows; r++) {
        __m512i acc = _mm512_setzero_si512();
        for (int s = kFirst; s < kFirst + kSteps; s++) {
            int32_t four;
            std::memcpy(&four, x + r * stride + 4 * s, 4);
            acc = _mm512_dpbusd_epi32(acc, w.step[s], _mm512_set1_epi32(four));
        }
        out[r] = acc;
    }
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
constexpr int kMaxRows = 16;  // as many sums fit beside the weights
constexpr int kCachedRows = 16;

}  // namespace
}  // namespace kvist::KVIST_ISA
