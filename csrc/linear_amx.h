// Many rows on the matrix unit: per group one product of [rows, 32] by [32, 16 outputs], whose exact integers go through the
// same float steps as everywhere else.
#pragma once

#include "linear.h"
#include "linear_formats.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

constexpr int kMatrixRows = 16;     // of one product
constexpr int kMinMatrixRows = 5;   // with fewer, vectors are faster
constexpr int kUnfoldAhead = 3;     // groups between unfolding and product: the stores have left by then
constexpr int kMaxMatrixRun = 128;  // rows that use one unfolding of the weights

// What the float steps need of a product's rows in one group, so that each is one broadcast from a fixed place.
struct GroupScales {
    float scale[kMatrixRows];
    float scaled_sum[kMatrixRows];
};
struct ScalesRoom {
    alignas(64) GroupScales scales[kMaxMatrixRun / kMatrixRows][kMaxGroups];
};
GroupScales* scales_scratch(int block) { return scratch<ScalesRoom>().scales[block]; }

template <class Format>
constexpr bool kHasMinimum = requires(typename Format::Group group) { group.m; };

// The matrix unit multiplies signed weights too: no sums of activations to take off.
template <class Format>
inline typename Format::Group unfold_for_matrix(const PackedTile<Format>& packed, int g) {
    auto group = packed.unfold(g);
    if constexpr (!kHasMinimum<Format>)
        for (auto& step : group.w.step) step = _mm512_sub_epi8(step, _mm512_set1_epi8(static_cast<char>(Format::kOffset)));
    return group;
}

inline F16 scale_of(const F16& d, int) { return d; }
inline F16 scale_of(const F16 (&d)[2], int part) { return d[part]; }

void transpose(__m512 (&v)[16]) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            v[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            v[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 4; i++) {
        const __m512 a = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88), b = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88), d = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
    for (int i = 0; i < 16; i++) v[i] = t[i];
}

// [num_rows, num_groups] to one row of sixteen per group; missing rows are 0.
void gather_scales(const float* from, int num_rows, int num_groups, float* to) {
    constexpr int kStride = sizeof(GroupScales) / sizeof(float);
    for (int g = 0; g < num_groups; g += 16) {
        const int some = std::min(16, num_groups - g);
        const __mmask16 mask = static_cast<__mmask16>((1u << some) - 1);
        __m512 v[16];
        for (int r = 0; r < 16; r++)
            v[r] = r < num_rows ? _mm512_maskz_loadu_ps(mask, from + int64_t{r} * num_groups + g) : _mm512_setzero_ps();
        transpose(v);
        for (int i = 0; i < some; i++) _mm512_store_ps(to + (g + i) * kStride, v[i]);
    }
}

// Products alternate between two sets of tiles: 0, 2, 4 and 1, 3, 5 are products, activations, weights.
template <class Format>
void configure_tiles(int num_rows) {
    constexpr int kDepth = kGroup / Format::kDotsPerRow;
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t column_bytes[16] = {64, 64, kDepth, kDepth, 64, 64};
        uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 4; i++) config.rows[i] = static_cast<uint8_t>(num_rows);
    config.rows[4] = config.rows[5] = kDepth / 4;
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

// Tiles are named by literals: the assembler wants them so. The compiler does not know that tile loads read memory and
// tile stores write it: it must have written all before, and read nothing again from before.
template <class Format>
inline void even_product(const int8_t* x, int64_t stride, const void* w, int32_t* dots) {
    asm volatile("" : : : "memory");
    _tile_loadd(2, x, stride);
    _tile_loadd(4, w, 64);
    _tile_zero(0);
    if constexpr (kHasMinimum<Format>) _tile_dpbsud(0, 2, 4);
    else _tile_dpbssd(0, 2, 4);
    _tile_stored(0, dots, 64);
    asm volatile("" : : : "memory");
}
template <class Format>
inline void odd_product(const int8_t* x, int64_t stride, const void* w, int32_t* dots) {
    asm volatile("" : : : "memory");
    _tile_loadd(3, x, stride);
    _tile_loadd(5, w, 64);
    _tile_zero(1);
    if constexpr (kHasMinimum<Format>) _tile_dpbsud(1, 3, 5);
    else _tile_dpbssd(1, 3, 5);
    _tile_stored(1, dots, 64);
    asm volatile("" : : : "memory");
}

// Rows [row, row + the configured number) of one tile; those from `stored` on are written. Vector steps close to tile
// instructions run at half their speed, so a stretch of groups is multiplied first and scaled afterwards.
template <class Format, int kRows>
void matrix_rows(const LinearArgs& a, const PackedTile<Format>* packed, typename Format::Group* groups,
                 const GroupScales* scales, int tile, int row, int stored, int row_end) {
    constexpr int kParts = Format::kDotsPerRow, kMaxStretch = 10 / kParts;  // what fits the first-level cache
    const int num_groups = a.w.k / kGroup, num_stretches = (num_groups + kMaxStretch - 1) / kMaxStretch;
    const int stretch = (num_groups + num_stretches - 1) / num_stretches;
    const int8_t* x = a.x.q + row * a.x.k;
    alignas(64) int32_t dots[kMaxStretch * kParts][kMatrixRows][kTile];
    F16 acc[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) acc[r] = zero();
    for (int g = 0; packed && g < std::min(kUnfoldAhead, num_groups); g++) groups[g] = unfold_for_matrix<Format>(*packed, g);
    for (int begin = 0; begin < num_groups; begin += stretch) {
        const int end = std::min(begin + stretch, num_groups);
        for (int i = 0; i < (end - begin) * kParts; i++) {
            const int g = begin + i / kParts, part = i % kParts;
            const int8_t* from = x + g * kGroup + part * (kGroup / kParts);
            const int ahead = g + kUnfoldAhead;
            if (packed && part == 0 && ahead < num_groups) groups[ahead] = unfold_for_matrix<Format>(*packed, ahead);
            const auto* w = &groups[g].w.step[part * (8 / kParts)];
            if (i % 2) odd_product<Format>(from, a.x.k, w, dots[i][0]);
            else even_product<Format>(from, a.x.k, w, dots[i][0]);
        }
        for (int i = 0; i < (end - begin) * kParts; i++) {
            const int g = begin + i / kParts;
            const GroupScales& of = scales[g];
            const F16 d = scale_of(groups[g].d, i % kParts);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; r++) {
                const F16 sum = load_int32(dots[i][r]);
                acc[r] = fma(d, mul(sum, set1(of.scale[r])), acc[r]);
                if constexpr (kHasMinimum<Format>) acc[r] = fma(groups[g].m, set1(of.scaled_sum[r]), acc[r]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) {  // unrolled, so that the sums stay in registers
        if (row + r < stored || row + r >= row_end) continue;
        float* y = a.y + (row + r) * a.y_stride + tile * kTile;
        if (a.w.bias) acc[r] = add(acc[r], load(a.w.bias + tile * kTile));
        store(y, a.accumulate ? add(load(y), acc[r]) : acc[r]);
    }
}

// All rows, in products of as equal height as can be; the last begins early where that does not divide them.
template <class Format>
void matrix_run(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    const int num_rows = row_end - row_begin, num_groups = a.w.k / kGroup;
    const int num_blocks = (num_rows + kMatrixRows - 1) / kMatrixRows;
    const int height = (num_rows + num_blocks - 1) / num_blocks;
    auto first_row = [&](int block) { return std::min(row_begin + block * height, row_end - height); };
    for (int block = 0; block < num_blocks; block++) {
        const int64_t at = int64_t{first_row(block)} * num_groups;
        GroupScales* scales = scales_scratch(block);
        gather_scales(a.x.scale + at, height, num_groups, scales->scale);
        if constexpr (kHasMinimum<Format>) gather_scales(a.x.scaled_sum + at, height, num_groups, scales->scaled_sum);
    }
    configure_tiles<Format>(height);
    auto* groups = group_scratch<typename Format::Group>();
    for (int tile = tile_begin; tile < tile_end; tile++) {
        const auto packed = packed_tile<Format>(a, tile, tile_end, true);
        for (int block = 0; block < num_blocks; block++) {
            const int row = first_row(block), stored = row_begin + block * height, end = std::min(stored + height, row_end);
            const auto* to_unfold = block == 0 ? &packed : nullptr;  // the first block of rows does it under its products
            if (height <= 8) matrix_rows<Format, 8>(a, to_unfold, groups, scales_scratch(block), tile, row, stored, end);
            else if (height <= 12) matrix_rows<Format, 12>(a, to_unfold, groups, scales_scratch(block), tile, row, stored, end);
            else matrix_rows<Format, 16>(a, to_unfold, groups, scales_scratch(block), tile, row, stored, end);
        }
    }
    _tile_release();
}

}  // namespace
}  // namespace kvist::KVIST_ISA
