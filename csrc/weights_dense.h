// Dense weights of two bytes as tiles of the matrix unit: bfloat16 as they are stored, float16 rounded to bfloat16. Sixteen rows
// are turned around as they are used, so that a file's own bytes serve.
#pragma once

#include "packed_tile.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

template <bool kIsHalfFormat>
struct DenseFormat {
    static constexpr bool kIsHalf = kIsHalfFormat;
    static constexpr int kGroups = 1;
    struct Block {  // 32 weights of each row
        const uint16_t* rows;
        int64_t stride;
        int num_rows;  // that there are, of a tile
    };
};
using F16Rows = DenseFormat<true>;
using BF16Rows = DenseFormat<false>;

template <class Format>
constexpr bool kIsDenseRows = false;
template <bool kIsHalf>
constexpr bool kIsDenseRows<DenseFormat<kIsHalf>> = true;

// As for packed weights: those `ahead` numbers further on are fetched, up to the end of the matrix.
template <bool kIsHalf>
struct PackedTile<DenseFormat<kIsHalf>> {
    const uint16_t* rows;
    int64_t stride;
    int num_rows;
    const uint16_t* end;
    int64_t ahead;

    typename DenseFormat<kIsHalf>::Block block(int g) const {
        const uint16_t* from = rows + g * kGroup;
        if (from + ahead + (kTile - 1) * stride < end)
            for (int row = 0; row < kTile; row++) __builtin_prefetch(from + ahead + row * stride);
        return {from, stride, num_rows};
    }
};
template <class Format>
    requires kIsDenseRows<Format>
PackedTile<Format> packed_tile(const PackedMatrix& w, int tile, int tiles_ahead) {
    const auto* data = static_cast<const uint16_t*>(w.data);
    const int64_t tile_size = int64_t{kTile} * w.k;
    return {data + tile * tile_size, w.k, std::min(kTile, w.n - tile * kTile), data + int64_t{w.n} * w.k,
            tiles_ahead * tile_size};
}

#if defined(__AVX512F__)

// [16 rows][16 pairs] to [16 pairs][16 rows].
inline void store_turned(const __m512i (&rows)[kTile], uint16_t* to) {
    __m512i twos[kTile], fours[kTile];  // lane l of fours[4 q + c]: pair 4 l + c of rows 4 q .. 4 q + 3
    for (int i = 0; i < kTile; i += 2) {
        twos[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        twos[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < kTile; i += 4) {
        fours[i] = _mm512_unpacklo_epi64(twos[i], twos[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(twos[i], twos[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(twos[i + 1], twos[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(twos[i + 1], twos[i + 3]);
    }
    constexpr int kEven = 0x88, kOdd = 0xdd;  // lanes
    const auto put = [to](int pair, __m512i x) { _mm512_store_si512(to + pair * 2 * kTile, x); };
    for (int c = 0; c < 4; c++) {
        const __m512i even = _mm512_shuffle_i32x4(fours[c], fours[4 + c], kEven),
                      odd = _mm512_shuffle_i32x4(fours[c], fours[4 + c], kOdd),
                      later_even = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], kEven),
                      later_odd = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], kOdd);
        put(c, _mm512_shuffle_i32x4(even, later_even, kEven));
        put(4 + c, _mm512_shuffle_i32x4(odd, later_odd, kEven));
        put(8 + c, _mm512_shuffle_i32x4(even, later_even, kOdd));
        put(12 + c, _mm512_shuffle_i32x4(odd, later_odd, kOdd));
    }
}

template <bool kIsHalf>
inline __m512i load_pairs(const uint16_t* from) {
    if constexpr (kIsHalf) return (__m512i)_mm512_cvtne2ps_pbh(load_half(from + kTile).v, load_half(from).v);
    else return _mm512_loadu_si512(from);
}

template <class Format>
    requires kIsDenseRows<Format>
inline void widen(const typename Format::Block& block, int, uint16_t* to) {
    __m512i rows[kTile];
    if (block.num_rows == kTile) {
        for (int i = 0; i < kTile; i++) rows[i] = load_pairs<Format::kIsHalf>(block.rows + i * block.stride);
    } else {
        for (int i = 0; i < kTile; i++)
            rows[i] = i < block.num_rows ? load_pairs<Format::kIsHalf>(block.rows + i * block.stride) : _mm512_setzero_si512();
    }
    store_turned(rows, to);
}

#else

template <class Format>
    requires kIsDenseRows<Format>
inline void widen(const typename Format::Block& block, int, uint16_t* to) {
    for (int row = 0; row < kTile; row++) {
        uint16_t numbers[kGroup] = {};
        if (row < block.num_rows) std::memcpy(numbers, block.rows + row * block.stride, sizeof numbers);
        if constexpr (Format::kIsHalf) store_bfloat2(numbers, load_half(numbers), load_half(numbers + kTile));
        for (int k = 0; k < kGroup; k++) to[k / 2 * 2 * kTile + 2 * row + k % 2] = numbers[k];
    }
}

#endif

}  // namespace
}  // namespace kvist::KVIST_ISA
