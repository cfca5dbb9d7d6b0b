// The packed weights of one tile of outputs, read along K.
#pragma once

#include "linear.h"
#include "linear_formats.h"

namespace kvist::KVIST_ISA {
namespace {

constexpr int kAheadBytes = 16384;  // how far the weights of few rows are fetched before they are used

// One tile's weights, which fetches those `ahead` bytes further on, up to the end of the matrix, as a group is asked for: who
// calls for a few tiles mostly calls for the next ones then.
template <class Format>
struct PackedTile {
    const typename Format::Block* blocks;
    const char* end;
    int64_t ahead;

    const typename Format::Block& block(int g) const {
        const auto& block = blocks[g / Format::kGroups];
        constexpr int kBytes = sizeof(block) / Format::kGroups;
        const auto* next = reinterpret_cast<const char*>(&block) + g % Format::kGroups * kBytes + ahead;
        if (next + kBytes <= end)
            for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(next + line);
        return block;
    }
    auto unfold(int g) const { return Format::expand(block(g), g % Format::kGroups); }
};
template <Packed Format>
PackedTile<Format> packed_tile(const PackedMatrix& w, int tile, int tiles_ahead) {
    const int blocks_per_tile = w.k / (kGroup * Format::kGroups);
    const auto* data = static_cast<const typename Format::Block*>(w.data);
    const int64_t num_tiles = (w.n + kTile - 1) / kTile;
    return {data + int64_t{tile} * blocks_per_tile, reinterpret_cast<const char*>(data + num_tiles * blocks_per_tile),
            tiles_ahead ? int64_t{tiles_ahead} * blocks_per_tile * static_cast<int64_t>(sizeof(*data)) : kAheadBytes};
}

}  // namespace
}  // namespace kvist::KVIST_ISA
