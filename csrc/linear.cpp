// Linears on quantized activations, for all weight formats that are multiplied with them, and gate and up with what follows.
#include "kernels.h"
#include "scratch.h"

#if defined(KVIST_MATRIX_UNIT)
#include "linear_matrix.h"
#else
#include "linear_int8.h"
#endif

#include <algorithm>

namespace kvist::KVIST_ISA {

void linear(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end);
void gated_quantize_groups(RowBuffer gate, RowBuffer up, Activation kind, Activations q, int group_begin, int group_end,
                           int row_begin, int row_end);

namespace {

// Calls fn(format) with the weights' format as a type.
template <class Fn>
void with_format(Format format, Fn fn) {
    switch (format) {
        case Format::q4_0: return fn(Q4_0{});
        case Format::q4_1: return fn(Q4_1{});
        case Format::q4_k: return fn(Q4_K{});
        case Format::q5_0: return fn(Q5_0{});
        case Format::q5_1: return fn(Q5_1{});
        case Format::q5_k: return fn(Q5_K{});
        case Format::q6_k: return fn(Q6_K{});
        case Format::q8_0: return fn(Q8_0{});
#if defined(KVIST_MATRIX_UNIT)
        case Format::f16: return fn(F16Rows{});
        case Format::bf16: return fn(BF16Rows{});
#endif
        default: return;
    }
}

constexpr int kGatedGroups = 2, kGatedRows = 256;  // at a time

struct GatedRoom {
    alignas(64) float gate[kGatedRows * kGatedGroups * kGroup], up[kGatedRows * kGatedGroups * kGroup];
};

// By way of rows of floats, which stay in the cache.
void gated_by_rows(const GatedArgs& a, int group, int group_end, int row, int row_end) {
    constexpr int kStride = kGatedGroups * kGroup, kTilesPerGroup = kGroup / kTile;
    auto& room = scratch<GatedRoom>();
    const int tile = group * kTilesPerGroup, tile_end = group_end * kTilesPerGroup;
    const int64_t before = int64_t{row} * kStride + tile * kTile;  // the kernel counts rows and outputs from 0
    linear({a.gate, a.x, room.gate - before, kStride, false}, tile, tile_end, row, row_end);
    linear({a.up, a.x, room.up - before, kStride, false}, tile, tile_end, row, row_end);
    gated_quantize_groups({room.gate, kStride}, {room.up, kStride}, a.kind, a.y, group, group_end, row, row_end);
}

}  // namespace

void linear(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    with_format(a.w.format, [&](auto format) { linear_tiles<decltype(format)>(a, tile_begin, tile_end, row_begin, row_end); });
}

void gated_linear(const GatedArgs& a, int group_begin, int group_end, int row_begin, int row_end) {
#if defined(KVIST_MATRIX_UNIT)
    constexpr int kTilesPerGroup = kGroup / kTile;
    if (a.gate.format == a.up.format)
        return with_format(a.gate.format, [&](auto format) {
            using Of = decltype(format);
            const auto tiles =
                a.kind == Activation::silu ? gated_tiles<Of, Activation::silu> : gated_tiles<Of, Activation::gelu_tanh>;
            tiles(a, group_begin * kTilesPerGroup, group_end * kTilesPerGroup, row_begin, row_end);
        });
#endif
    for (int row = row_begin; row < row_end; row += kGatedRows)
        for (int group = group_begin; group < group_end; group += kGatedGroups)
            gated_by_rows(a, group, std::min(group + kGatedGroups, group_end), row, std::min(row + kGatedRows, row_end));
}

}  // namespace kvist::KVIST_ISA
