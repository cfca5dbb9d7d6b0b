// The quantized linear kernel. One program shape for all formats: per group, unfold the tile's weights, take exact integer
// dot products with each row, and apply scale and minimum once per group, in group order (linear_formats.h). Few rows take
// the weights from registers; many rows share an unfolded tile in the cache; the matrix unit takes over where there is one.
#include "linear.h"

#include "linear_formats.h"
#include "scratch.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

constexpr int kMaxGroups = 1024;   // of an unfolded tile
constexpr int kManyRows = 32;      // with fewer, unfolding into the cache costs more than it saves
constexpr int kAheadBytes = 4096;  // how far the weights of few rows are fetched before they are used

// One tile's weights, which fetches those `ahead` bytes further on, up to the end of the caller's tiles, as it unfolds.
template <class Format>
struct PackedTile {
    const typename Format::Block* blocks;
    const char* end;
    int64_t ahead;

    auto unfold(int g) const {
        const auto& block = blocks[g / Format::kGroups];
        constexpr int kBytes = sizeof(block) / Format::kGroups;
        const auto* next = reinterpret_cast<const char*>(&block) + g % Format::kGroups * kBytes + ahead;
        if (next + kBytes <= end)
            for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(next + line);
        return Format::expand(block, g % Format::kGroups);
    }
};
template <class Format>
PackedTile<Format> packed_tile(const LinearArgs& a, int tile, int tile_end, bool fetch_next_tile) {
    const int blocks_per_tile = a.w.k / (kGroup * Format::kGroups);
    const auto* data = static_cast<const typename Format::Block*>(a.w.data);
    return {data + int64_t{tile} * blocks_per_tile, reinterpret_cast<const char*>(data + int64_t{tile_end} * blocks_per_tile),
            fetch_next_tile ? blocks_per_tile * static_cast<int64_t>(sizeof(*data)) : kAheadBytes};
}

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
        const auto packed = packed_tile<Format>(a, tile, tile_end, false);
        rows_of<Format, kMaxRows>(a, tile, row_begin, row_end, [=](int g) { return packed.unfold(g); });
    }
}

template <class Format>
void many_rows(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    auto* groups = group_scratch<typename Format::Group>();
    for (int tile = tile_begin; tile < tile_end; tile++) {
        const auto packed = packed_tile<Format>(a, tile, tile_end, true);
        for (int g = 0; g < a.w.k / kGroup; g++) groups[g] = packed.unfold(g);
        rows_of<Format, kCachedRows>(a, tile, row_begin, row_end,
                                     [=](int g) -> const typename Format::Group& { return groups[g]; });
    }
}

}  // namespace
}  // namespace kvist::KVIST_ISA

#if defined(__AMX_INT8__)
#include "linear_amx.h"
#endif

namespace kvist::KVIST_ISA {
namespace {

template <class Format>
void linear_tiles(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    [[maybe_unused]] const bool fits = a.w.k / kGroup <= kMaxGroups;
#if defined(__AMX_INT8__)
    for (; fits && row_end - row_begin >= kMinMatrixRows; row_begin = std::min(row_begin + kMaxMatrixRun, row_end))
        matrix_run<Format>(a, tile_begin, tile_end, row_begin, std::min(row_begin + kMaxMatrixRun, row_end));
#elif defined(__AVX2__)
    if (fits && row_end - row_begin >= kManyRows) return many_rows<Format>(a, tile_begin, tile_end, row_begin, row_end);
#endif
    few_rows<Format>(a, tile_begin, tile_end, row_begin, row_end);
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
