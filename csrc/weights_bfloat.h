// A group's weights widened to bfloat16, as a tile of the matrix unit: [16 pairs of k][16 outputs][2].
//
// The bits of an integer weight u are put into the fraction of a float, 2^e + u, and one fused step gives
//   w = fma(2^e + u, d, m - 2^e d)
// with e = 15, 11 or 7, as its place in its dword has it (16 or 8 for weights of eight bits). w is cut to bfloat16,
// not rounded, for half the steps; what cutting takes away on average over all fractions, c = 2^-8 times the mean of 1 / fraction
// of each weight, the finished sums get back by a factor 1 + c. So a weight is within 0.7 units in the last place, without bias.
#pragma once

#include "linear_formats.h"

#include <type_traits>

namespace kvist::KVIST_ISA {
namespace {

constexpr float kAfterCut = 1.0f + 0.0028182f;
constexpr int kGroupTile = kGroup * kTile;  // numbers of a group

// Of eight bits, or of seven at most: then a byte in the upper place leaves the exponent alone.
template <class Format>
constexpr bool kEightBits = std::is_same_v<Format, Q8_0>;
template <class Format>
constexpr bool kHasMinimum = requires(typename Format::Group group) { group.m; };

template <class Format>
constexpr bool kNibbles = std::is_same_v<Format, Q4_0> || std::is_same_v<Format, Q4_1> || std::is_same_v<Format, Q4_K>;

// 2^e of the places that a weight may be used at.
template <class Format>
constexpr float kLowBase = kEightBits<Format> ? 65536.0f : 32768.0f;
template <class Format>
constexpr float kHighBase = kEightBits<Format> ? 256.0f : 128.0f;
constexpr float kMiddleBase = 2048.0f;

// The factors of one output each, for each of the places.
struct WideScales {
    F16 d, low, middle, high;
};

// m - base * d
template <class Format>
inline F16 addend(const typename Format::Group& group, F16 d, float base) {
    if constexpr (kHasMinimum<Format>) return fma(d, set1(-base), group.m);
    else return mul(d, set1(-base - (kEightBits<Format> ? 128.0f : Format::kOffset)));
}
// Of the first or second half of a group.
template <class Format>
inline WideScales wide_scales(const typename Format::Group& group, [[maybe_unused]] int half) {
    F16 d;
    if constexpr (Format::kDotsPerRow == 2) d = group.d[half];
    else d = group.d;
    return {d, addend<Format>(group, d, kLowBase<Format>), addend<Format>(group, d, kMiddleBase),
            addend<Format>(group, d, kHighBase<Format>)};
}

#if defined(__AVX512F__)

template <uint32_t kField, uint32_t kBase>
inline F16 with_base(__m512i x) {  // (x & kField) | kBase
    return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(x, _mm512_set1_epi32(kField), _mm512_set1_epi32(kBase), 0xea))};
}
// [output][2]: the upper halves of both.
inline void store_pairs(uint16_t* to, F16 even, F16 odd) {
    constexpr __mmask64 kEven = 0x3333333333333333;
    const __m512i low = _mm512_castps_si512(even.v);
    _mm512_store_si512(to, _mm512_mask_alignr_epi8(_mm512_castps_si512(odd.v), kEven, low, low, 2));
}

constexpr uint32_t exponent(int e) { return static_cast<uint32_t>(127 + e) << 23; }

// Steps s and s + 4 from 64 bytes of nibbles, as they are packed.
inline void widen_nibbles(const uint8_t* nibbles, const WideScales& s, uint16_t* low, uint16_t* high) {
    const __m512i x = _mm512_loadu_si512(nibbles), far = _mm512_rol_epi32(x, 16), left = _mm512_rol_epi32(x, 8),
                  right = _mm512_ror_epi32(x, 8);
    const auto at8 = [&](__m512i v) { return fma(with_base<0xf00, exponent(15)>(v), s.d, s.low); };
    const auto at12 = [&](__m512i v) { return fma(with_base<0xf000, exponent(11)>(v), s.d, s.middle); };
    const auto at16 = [&](__m512i v) { return fma(with_base<0xf0000, exponent(7)>(v), s.d, s.high); };
    store_pairs(low, at16(far), at8(x));
    store_pairs(low + 2 * kTile, at16(x), at8(far));
    store_pairs(high, at12(left), at12(x));
    store_pairs(high + 2 * kTile, at12(right), at12(far));
}

// Four weights a dword, of eight bits.
inline void widen_bytes(__m512i x, const WideScales& s, uint16_t* to) {
    const __m512i first = _mm512_rol_epi32(x, 7), second = _mm512_rol_epi32(x, 23);
    const auto at7 = [&](__m512i v) { return fma(with_base<0xff << 7, exponent(16)>(v), s.d, s.low); };
    const auto at15 = [&](__m512i v) { return fma(with_base<0xff << 15, exponent(8)>(v), s.d, s.high); };
    store_pairs(to, at7(first), at15(first));
    store_pairs(to + 2 * kTile, at7(second), at15(second));
}

// Of seven at most.
inline void widen_sevens(__m512i x, const WideScales& s, uint16_t* to) {
    const __m512i far = _mm512_rol_epi32(x, 16);
    const auto at8 = [&](__m512i v) { return fma(with_base<0x7f << 8, exponent(15)>(v), s.d, s.low); };
    const auto at16 = [&](__m512i v) { return fma(with_base<0x7f << 16, exponent(7)>(v), s.d, s.high); };
    store_pairs(to, at16(far), at8(x));
    store_pairs(to + 2 * kTile, at16(x), at8(far));
}

// Group g of a block, to [16 pairs][16 outputs][2].
template <Packed Format>
inline void widen(const typename Format::Block& block, int g, uint16_t* to) {
    constexpr int kStep = 4 * kTile;
    const auto group = Format::expand(block, g);
    WideScales s = wide_scales<Format>(group, 0);
    if constexpr (kNibbles<Format>) {
        const uint8_t* nibbles;
        if constexpr (Format::kGroups > 1) nibbles = block.u[g];
        else nibbles = block.u;
        for (int step = 0; step < 4; step++) widen_nibbles(nibbles + 64 * step, s, to + step * kStep, to + (step + 4) * kStep);
    } else {
        for (int step = 0; step < 8; step++) {
            if (Format::kDotsPerRow == 2 && step == 4) s = wide_scales<Format>(group, 1);
            if constexpr (kEightBits<Format>) widen_bytes(group.w.step[step], s, to + step * kStep);
            else widen_sevens(group.w.step[step], s, to + step * kStep);
        }
    }
}

#else

template <Packed Format>
inline void widen(const typename Format::Block& block, int g, uint16_t* to) {
    const auto group = Format::expand(block, g);
    for (int k = 0; k < kGroup; k++) {
        const WideScales s = wide_scales<Format>(group, k / (kGroup / 2));
        const bool is_middle = kNibbles<Format> && k >= kGroup / 2, is_high = kEightBits<Format> ? k % 2 : k % 2 == 0;
        const float base = is_middle ? kMiddleBase : is_high ? kHighBase<Format> : kLowBase<Format>;
        const F16& added = is_middle ? s.middle : is_high ? s.high : s.low;
        float u[kTile], w[kTile];
        for (int n = 0; n < kTile; n++) {
            const int integer = group.w.step[k / 4][n][k % 4] + (kEightBits<Format> ? 128 : 0);  // eight bits come signed
            u[n] = base + static_cast<float>(integer);
        }
        store(w, fma(load(u), s.d, added));
        for (int n = 0; n < kTile; n++) {
            uint32_t bits;
            std::memcpy(&bits, w + n, 4);
            to[k / 2 * 2 * kTile + 2 * n + k % 2] = static_cast<uint16_t>(bits >> 16);
        }
    }
}

#endif

}  // namespace
}  // namespace kvist::KVIST_ISA
