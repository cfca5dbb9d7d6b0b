// The quantized linear on the matrix unit: weights are widened to bfloat16 when they are used and multiplied with bfloat16
// activations, 32 along K at a time, in order, added up in float32. Every number of rows takes this way, so that the bits of a row
// do not depend on its company.
//
// 32 rows by 32 outputs are multiplied at a time: four accumulators, two tiles of activations, two of weights. The first rows of a
// call go along with the widening, which the matrix unit's work overlaps with; more rows find the weights widened.
#pragma once

#include "matrix_unit.h"
#include "packed_tile.h"
#include "scratch.h"
#include "weights_bfloat.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

constexpr int kMaxChunk = 64;  // groups along K that are widened at a time
constexpr int kMaxRun = 256;   // rows that use one widening
constexpr int kBlockRows = 2 * kTileRows;

constexpr int kBehind = 1;  // groups between widening and loading: the stores have left by then
constexpr int kRing = 4;    // groups that are kept where no more rows need them

struct MatrixRoom {
    alignas(64) uint16_t weights[2][kMaxChunk * kGroupTile];           // [tile of outputs][group][pair of k][output][2]
    alignas(64) float sums[kMaxRun / kTileRows][2][kTileRows][kTile];  // [tile of rows][tile of outputs]
};

// Heights of the two tiles of rows of a block; accumulators are 0..3, activations 4 and 5, weights 6 and 7.
TileShapes shapes_of(int num_rows) {
    const auto upper = static_cast<uint8_t>(std::min(num_rows, kTileRows)), lower = static_cast<uint8_t>(num_rows - upper);
    const uint16_t c = lower ? kTileBytes : 0;
    return {{upper, upper, lower, lower, upper, lower, kTileRows, kTileRows},
            {kTileBytes, kTileBytes, c, c, kTileBytes, c, kTileBytes, kTileBytes}};
}

// Some groups along K of one block of rows.
struct Block {
    const char* x;   // bfloat16 rows, at the first group
    int64_t stride;  // bytes
    float (*sums)[2][kTileRows][kTile];
    int groups;
    bool is_first;  // of the groups of these rows
    int kept;       // group g's widened weights stand at g & kept
};

template <int kTiles, bool kTwo>
inline void begin_sums(const Block& b) {
    if (b.is_first) {
        tile_zero<0>();
        if constexpr (kTiles == 2) tile_zero<1>();
        if constexpr (kTwo) tile_zero<2>();
        if constexpr (kTwo && kTiles == 2) tile_zero<3>();
    } else {
        tile_load<0>(b.sums[0][0], kTileBytes);
        if constexpr (kTiles == 2) tile_load<1>(b.sums[0][1], kTileBytes);
        if constexpr (kTwo) tile_load<2>(b.sums[1][0], kTileBytes);
        if constexpr (kTwo && kTiles == 2) tile_load<3>(b.sums[1][1], kTileBytes);
    }
}
template <int kTiles, bool kTwo>
inline void end_sums(const Block& b) {
    tile_store<0>(b.sums[0][0], kTileBytes);
    if constexpr (kTiles == 2) tile_store<1>(b.sums[0][1], kTileBytes);
    if constexpr (kTwo) tile_store<2>(b.sums[1][0], kTileBytes);
    if constexpr (kTwo && kTiles == 2) tile_store<3>(b.sums[1][1], kTileBytes);
}
template <bool kTwo>
inline void load_rows(const Block& b, int g) {
    tile_load<4>(b.x + g * kTileBytes, b.stride);
    if constexpr (kTwo) tile_load<5>(b.x + g * kTileBytes + kTileRows * b.stride, b.stride);
}
template <int kAt>
inline void load_weights(const Block& b, const MatrixRoom& room, int g) {
    tile_load<6 + kAt>(room.weights[kAt] + (g & b.kept) * kGroupTile, kTileBytes);
}
template <int kAt, bool kTwo>
inline void add_products() {
    tile_dot_bfloat<kAt, 4, 6 + kAt>();
    if constexpr (kTwo) tile_dot_bfloat<2 + kAt, 5, 6 + kAt>();
}
template <int kTiles, bool kTwo>
inline void multiply_group(const Block& b, const MatrixRoom& room, int g) {
    load_rows<kTwo>(b, g);
    load_weights<0>(b, room, g);
    add_products<0, kTwo>();
    if constexpr (kTiles == 2) {
        load_weights<1>(b, room, g);
        add_products<1, kTwo>();
    }
}

// The first block of rows: its products run behind the widening of what they need, which overlaps with them. A product waits for
// nothing when its turn comes, as its tiles were loaded a group before: what waits would hold up all that the processor has begun.
template <class Format, int kTiles, bool kTwo>
void widen_and_multiply(const Block& b, MatrixRoom& room, const PackedTile<Format> (&packed)[2], int first_group) {
    constexpr int kLast = kTiles - 1;
    const auto widen_tile = [&](int t, int g) {
        widen<Format>(packed[t].block(first_group + g), (first_group + g) % Format::kGroups,
                      room.weights[t] + (g & b.kept) * kGroupTile);
    };
    begin_sums<kTiles, kTwo>(b);
    for (int g = 0; g < b.groups + kBehind; g++) {
        const int loaded = g - kBehind;
        if constexpr (kTiles == 2) {
            if (g < b.groups) widen_tile(0, g);
            if (loaded > 0) add_products<0, kTwo>();
            if (loaded >= 0) load_weights<0>(b, room, loaded);
        }
        if (g < b.groups) widen_tile(kLast, g);
        if (loaded > 0) add_products<kLast, kTwo>();
        if (loaded >= 0) {
            load_weights<kLast>(b, room, loaded);
            load_rows<kTwo>(b, loaded);
        }
    }
    if constexpr (kTiles == 2) add_products<0, kTwo>();
    add_products<kLast, kTwo>();
    end_sums<kTiles, kTwo>(b);
}

template <int kTiles, bool kTwo>
void multiply(const Block& b, const MatrixRoom& room) {
    begin_sums<kTiles, kTwo>(b);
    for (int g = 0; g < b.groups; g++) multiply_group<kTiles, kTwo>(b, room, g);
    end_sums<kTiles, kTwo>(b);
}

template <int kTiles>
void store_sums(const LinearArgs& a, const Block& b, int tile, int row, int num_rows) {
    for (int i = 0; i < num_rows; i++) {
        float* y = a.y + (row + i) * a.y_stride + tile * kTile;
        for (int t = 0; t < kTiles; t++, y += kTile) {
            F16 sum = mul(load(b.sums[i / kTileRows][t][i % kTileRows]), set1(kAfterCut));
            if (a.w.bias) sum = add(sum, load(a.w.bias + (tile + t) * kTile));
            store(y, a.accumulate ? add(load(y), sum) : sum);
        }
    }
}

template <int kTiles>
void fetch_outputs(const LinearArgs& a, int tile, int row, int num_rows) {
    for (int i = 0; i < num_rows; i++)
        for (int t = 0; t < kTiles; t++) __builtin_prefetch(a.y + (row + i) * a.y_stride + (tile + t) * kTile, 1);
}

// kTiles of outputs for at most kMaxRun rows. `unit` has the shapes of the first block.
template <class Format, int kTiles>
void matrix_tiles(const LinearArgs& a, MatrixUnit& unit, int tile, int row_begin, int row_end) {
    static_assert(kBehind < kRing);
    auto& room = scratch<MatrixRoom>();
    const int num_groups = a.w.k / kGroup;
    const PackedTile<Format> packed[2] = {packed_tile<Format>(a, tile, kTiles),
                                          packed_tile<Format>(a, tile + kTiles - 1, kTiles)};
    const int kept = row_end - row_begin > kBlockRows ? -1 : kRing - 1;
    for (int begin = 0; begin < num_groups; begin += kMaxChunk) {
        const int groups = std::min(kMaxChunk, num_groups - begin);
        const bool is_last = begin + groups == num_groups;
        for (int row = row_begin; row < row_end; row += kBlockRows) {
            const int num_rows = std::min(kBlockRows, row_end - row);
            const Block b = {reinterpret_cast<const char*>(a.x.bfloat + row * a.x.stride + begin * kGroup),
                             2 * a.x.stride,
                             room.sums + (row - row_begin) / kTileRows,
                             groups,
                             begin == 0,
                             kept};
            if (is_last) fetch_outputs<kTiles>(a, tile, row, num_rows);
            if (row > row_begin && num_rows < kBlockRows) unit.reshape(shapes_of(num_rows));
            if (row == row_begin) {
                if (num_rows > kTileRows) widen_and_multiply<Format, kTiles, true>(b, room, packed, begin);
                else widen_and_multiply<Format, kTiles, false>(b, room, packed, begin);
            } else {
                if (num_rows > kTileRows) multiply<kTiles, true>(b, room);
                else multiply<kTiles, false>(b, room);
            }
            if (row > row_begin && num_rows < kBlockRows) unit.reshape(shapes_of(kBlockRows));
            if (is_last) store_sums<kTiles>(a, b, tile, row, num_rows);
        }
    }
}

template <class Format>
void linear_tiles(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    for (; row_begin < row_end; row_begin += kMaxRun) {
        const int stop = std::min(row_begin + kMaxRun, row_end);
        MatrixUnit unit(shapes_of(std::min(stop - row_begin, kBlockRows)));
        int tile = tile_begin;
        for (; tile + 2 <= tile_end; tile += 2) matrix_tiles<Format, 2>(a, unit, tile, row_begin, stop);
        if (tile < tile_end) matrix_tiles<Format, 1>(a, unit, tile, row_begin, stop);
    }
}

}  // namespace
}  // namespace kvist::KVIST_ISA
