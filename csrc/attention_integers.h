// int8 numbers of the pool as bfloat16 that the matrix unit multiplies: exact, but for a power of two. All that is multiplied with them
// is multiplied with kIntegerScale first.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512FP16__)
#include <immintrin.h>
#endif

namespace kvist::KVIST_ISA {

constexpr float kIntegerScale = 0x1p104f;

#if defined(__AVX512FP16__)

// 256 x for each 16 bits. As float16 its exponent has five bits, which bfloat16 has in front of the same seven of the fraction:
// moved there, they stand for 2^-112 of what they stood for, and 0 stays 0.
inline __m512i widen_words(__m512i words) {
    const __m512i halves = _mm512_castph_si512(_mm512_cvtepi16_ph(words));
    return _mm512_and_si512(_mm512_srai_epi16(halves, 3), _mm512_set1_epi16(static_cast<short>(0x8fff)));
}

// Sixteen times four numbers: the first two of each four to `low`, the others to `high`, 64 bytes each.
inline void widen_quads(const uint8_t* quads, uint16_t* low, uint16_t* high) {
    constexpr char kNone = -128;
    const __m512i low_bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(kNone, 0, kNone, 1, kNone, 4, kNone, 5, kNone, 8, kNone, 9, kNone, 12, kNone, 13));
    const __m512i high_bytes = _mm512_broadcast_i32x4(
        _mm_setr_epi8(kNone, 2, kNone, 3, kNone, 6, kNone, 7, kNone, 10, kNone, 11, kNone, 14, kNone, 15));
    const __m512i all = _mm512_loadu_si512(quads);
    _mm512_store_si512(low, widen_words(_mm512_shuffle_epi8(all, low_bytes)));
    _mm512_store_si512(high, widen_words(_mm512_shuffle_epi8(all, high_bytes)));
}

#else

inline uint16_t widen_integer(uint8_t byte) {
    const float x = static_cast<float>(static_cast<int8_t>(byte)) / kIntegerScale;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return static_cast<uint16_t>(bits >> 16);
}

inline void widen_quads(const uint8_t* quads, uint16_t* low, uint16_t* high) {
    for (int i = 0; i < 32; i++) {
        low[i] = widen_integer(quads[i / 2 * 4 + i % 2]);
        high[i] = widen_integer(quads[i / 2 * 4 + 2 + i % 2]);
    }
}

#endif

}  // namespace kvist::KVIST_ISA
