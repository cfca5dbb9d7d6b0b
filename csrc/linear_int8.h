// The quantized linear on int8 activations: per group, unfold the tile's weights, take exact integer dot products with each row,
// and apply scale and minimum once per group, in group order (linear_formats.h). Few rows take the weights from registers; many
// rows share an unfolded tile in the cache.
#pragma once

#include "packed_tile.h"
#include "scratch.h"

namespace kvist::KVIST_ISA {
namespace {

constexpr int kMaxGroups = 1024;  // of an unfolded tile
constexpr int kManyRows = 32;     // with fewer, unfolding into the cache costs more than it saves

struct GroupRoom {  // one for all formats: every thread's memory pays for it
    static constexpr std::size_t kGroupBytes = sizeof(Weights) + 2 * sizeof(F16);  // of the largest group
    alignas(64) std::byte bytes[kMaxGroups * kGroupBytes];
};
template <class Group>
Group* group_scratch() {
    static_assert(sizeof(Group) <= GroupRoom::kGroupBytes);
    return reinterpret_cast<Group*>(scratch<GroupRoom>().bytes);
}

// Rows [row, row + kRows) of one tile; group_at(g) gives the tile's groups unfolded.
template <class Format, int kRows, class GroupAt>
void tile_rows(const LinearArgs& a, int tile, int row, GroupAt group_at) {
    const int num_groups = a.w.k / kGroup;
    F16 acc[kRows];
    for (int r = 0; r < kRows; r++) acc[r] = zero();
    for (int g = 0; g < num_groups; g++) {
        const auto& group = group_at(g);
        Dots dots[kRows * Format::kDotsPerRow];
        Format::template multiply<kRows>(group, a.x.q + row * a.x.k + g * kGroup, a.x.k, dots);
        for (int r = 0; r < kRows; r++) {
            const int64_t at = int64_t{row + r} * num_groups + g;
            const GroupRow x = {a.x.scale[at], a.x.scaled_sum[at], a.x.sum16 + 2 * at};
            acc[r] = Format::template step<kRows>(group, dots + r, x, acc[r]);
        }
    }
    for (int r = 0; r < kRows; r++) {
        float* y = a.y + (row + r) * a.y_stride + tile * kTile;
        if (a.w.bias) acc[r] = add(acc[r], load(a.w.bias + tile * kTile));
        store(y, a.accumulate ? add(load(y), acc[r]) : acc[r]);
    }
}

template <class Format, int kRows, class GroupAt>
void rows_of(const LinearArgs& a, int tile, int row, int row_end, GroupAt group_at) {
    for (; row + kRows <= row_end; row += kRows) tile_rows<Format, kRows>(a, tile, row, group_at);
    if constexpr (kRows > 1) rows_of<Format, (kRows + 1) / 2>(a, tile, row, row_end, group_at);
}

template <class Format>
void few_rows(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    for (int tile = tile_begin; tile < tile_end; tile++) {
        const auto packed = packed_tile<Format>(a.w, tile, 0);
        rows_of<Format, kMaxRows>(a, tile, row_begin, row_end, [=](int g) { return packed.unfold(g); });
    }
}

template <class Format>
void many_rows(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    auto* groups = group_scratch<typename Format::Group>();
    for (int tile = tile_begin; tile < tile_end; tile++) {
        const auto packed = packed_tile<Format>(a.w, tile, 1);
        for (int g = 0; g < a.w.k / kGroup; g++) groups[g] = packed.unfold(g);
        rows_of<Format, kCachedRows>(a, tile, row_begin, row_end,
                                     [=](int g) -> const typename Format::Group& { return groups[g]; });
    }
}

template <class Format>
void linear_tiles(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
#if defined(__AVX2__)
    if (a.w.k / kGroup <= kMaxGroups && row_end - row_begin >= kManyRows)
        return many_rows<Format>(a, tile_begin, tile_end, row_begin, row_end);
#endif
    few_rows<Format>(a, tile_begin, tile_end, row_begin, row_end);
}

}  // namespace
}  // namespace kvist::KVIST_ISA
