// The quantized linear on the matrix unit: weights are widened to bfloat16 when they are used and multiplied with bfloat16
// activations, 32 along K at a time, in order, added up in float32. Every number of rows takes this way, so that the bits of a row
// do not depend on its company.
//
// 32 rows by two tiles of outputs are multiplied at a time: four accumulators, two tiles of activations, two of weights. The first
// rows of a call go along with the widening, which the matrix unit's work overlaps with; more rows find the weights widened. What
// follows a block's sums is done while the next block is multiplied.
#pragma once

#include "linear_sums.h"
#include "matrix_unit.h"
#include "packed_tile.h"
#include "scratch.h"
#include "weights_bfloat.h"
#include "weights_dense.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

constexpr int kMaxRun = 256;  // rows that use one widening; their activations stay in the second-level cache
// Groups along K that many rows pass at a time: the weights of two tiles, widened, stay in the first-level cache.
constexpr int kMaxChunk = 18;
constexpr int kBehind = 1;  // groups between widening and loading: the stores have left by then
constexpr int kRing = 4;    // groups that are kept where no more rows need them
static_assert(kBehind < kRing && kRing <= kMaxChunk);

struct MatrixRoom {
    alignas(64) uint16_t weights[2][kMaxChunk * kGroupTile];  // [tile of outputs][group][pair of k][output][2]
    BlockSums sums[kMaxRun / kBlockRows];
};

constexpr int64_t kSumsBytes = kSumsStride * sizeof(float);

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
    BlockSums& sums;
    int first_group, groups;
    int kept;  // the widened weights of the g-th of these groups stand at g & kept
};

template <int kTiles, bool kTwo>
inline void begin_sums(const Block& b) {
    if (b.first_group == 0) {
        tile_zero<0>();
        if constexpr (kTiles == 2) tile_zero<1>();
        if constexpr (kTwo) tile_zero<2>();
        if constexpr (kTwo && kTiles == 2) tile_zero<3>();
    } else {
        const float *upper = b.sums.rows[0], *lower = b.sums.rows[kTileRows];
        tile_load<0>(upper, kSumsBytes);
        if constexpr (kTiles == 2) tile_load<1>(upper + kTile, kSumsBytes);
        if constexpr (kTwo) tile_load<2>(lower, kSumsBytes);
        if constexpr (kTwo && kTiles == 2) tile_load<3>(lower + kTile, kSumsBytes);
    }
}
template <int kTiles, bool kTwo>
inline void end_sums(const Block& b) {
    float *upper = b.sums.rows[0], *lower = b.sums.rows[kTileRows];
    tile_store<0>(upper, kSumsBytes);
    if constexpr (kTiles == 2) tile_store<1>(upper + kTile, kSumsBytes);
    if constexpr (kTwo) tile_store<2>(lower, kSumsBytes);
    if constexpr (kTwo && kTiles == 2) tile_store<3>(lower + kTile, kSumsBytes);
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

// The first block of rows: its products run behind the widening of what they need, which overlaps with them. A product waits for
// nothing when its turn comes, as its tiles were loaded a group before: what waits would hold up all that the processor has begun.
template <class Format, int kTiles, bool kTwo, class Sink>
void widen_and_multiply(const Block& b, MatrixRoom& room, const PackedTile<Format> (&packed)[2], Unfinished<Sink> before) {
    constexpr int kLast = kTiles - 1;
    const auto widen_tile = [&](int t, int g) {
        const int at = b.first_group + g;
        widen<Format>(packed[t].block(at), at % Format::kGroups, room.weights[t] + (g & b.kept) * kGroupTile);
    };
    const int rows_per_step = before.rows_per_step(b.groups);
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
            tile_load<4>(b.x + loaded * kTileBytes, b.stride);
            if constexpr (kTwo) tile_load<5>(b.x + loaded * kTileBytes + kTileRows * b.stride, b.stride);
        }
        before.finish(rows_per_step);
    }
    if constexpr (kTiles == 2) add_products<0, kTwo>();
    add_products<kLast, kTwo>();
    end_sums<kTiles, kTwo>(b);
}

// Activations pass by the first-level cache: a block reads its own once, and all of them read the weights.
template <int kTiles, bool kTwo, class Sink>
void multiply(const Block& b, const MatrixRoom& room, Unfinished<Sink> before) {
    const int rows_per_step = before.rows_per_step(b.groups);
    const int64_t stride = b.stride;
    const char *upper = b.x, *lower = b.x + kTileRows * stride, *end = upper + b.groups * kTileBytes;
    const uint16_t* weights = room.weights[0];
    constexpr int kNext = kMaxChunk * kGroupTile;  // tile of outputs
    begin_sums<kTiles, kTwo>(b);
    for (; upper < end; upper += kTileBytes, lower += kTileBytes, weights += kGroupTile) {
        tile_load_once<4>(upper, stride);
        tile_load<6>(weights, kTileBytes);
        tile_dot_bfloat<0, 4, 6>();
        if constexpr (kTiles == 2) {
            tile_load<7>(weights + kNext, kTileBytes);
            tile_dot_bfloat<1, 4, 7>();
        }
        if constexpr (kTwo) {
            tile_load_once<5>(lower, stride);
            tile_dot_bfloat<2, 5, 6>();
            if constexpr (kTiles == 2) tile_dot_bfloat<3, 5, 7>();
        }
        before.finish(rows_per_step);
    }
    end_sums<kTiles, kTwo>(b);
}

// One or two tiles of outputs for rows [row_begin, row_end) of x, at most kMaxRun. `unit` has the shapes of the first block, `before`
// what other tiles left to do.
template <class Format, int kTiles, class Sink>
void matrix_tiles(const Activations& x, const PackedTile<Format> (&packed)[2], const Sink& sink, MatrixUnit& unit,
                  int row_begin, int row_end, Unfinished<Sink>& before) {
    auto& room = scratch<MatrixRoom>();
    const int num_groups = static_cast<int>(x.k) / kGroup;
    const bool is_one_block = row_end - row_begin <= kBlockRows;
    const int num_chunks = is_one_block ? 1 : (num_groups + kMaxChunk - 1) / kMaxChunk;
    const int chunk = (num_groups + num_chunks - 1) / num_chunks;
    for (int begin = 0; begin < num_groups; begin += chunk)
        for (int row = row_begin; row < row_end; row += kBlockRows) {
            const int rows = std::min(kBlockRows, row_end - row), groups = std::min(chunk, num_groups - begin);
            const Block b = {reinterpret_cast<const char*>(x.bfloat + row * x.stride + begin * kGroup),
                             2 * x.stride,
                             room.sums[num_chunks == 1 ? 0 : (row - row_begin) / kBlockRows],
                             begin,
                             groups,
                             is_one_block ? kRing - 1 : -1};
            const bool is_short = row > row_begin && rows < kBlockRows;
            if (is_short) unit.reshape(shapes_of(rows));
            if (row == row_begin) {
                if (rows > kTileRows) widen_and_multiply<Format, kTiles, true>(b, room, packed, before);
                else widen_and_multiply<Format, kTiles, false>(b, room, packed, before);
            } else {
                if (rows > kTileRows) multiply<kTiles, true>(b, room, before);
                else multiply<kTiles, false>(b, room, before);
            }
            if (is_short) unit.reshape(shapes_of(kBlockRows));
            if (begin + groups == num_groups) before = {sink, b.sums, row, rows};
            else before = Unfinished<Sink>(sink);
        }
}

template <class Format>
void linear_tiles(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    for (; row_begin < row_end; row_begin += kMaxRun) {
        const int stop = std::min(row_begin + kMaxRun, row_end);
        MatrixUnit unit(shapes_of(std::min(stop - row_begin, kBlockRows)));
        Unfinished<FloatRows<2>> before({a, tile_begin});
        int tile = tile_begin;
        for (; tile + 2 <= tile_end; tile += 2) {
            const PackedTile<Format> packed[2] = {packed_tile<Format>(a.w, tile, 2), packed_tile<Format>(a.w, tile + 1, 2)};
            matrix_tiles<Format, 2>(a.x, packed, FloatRows<2>(a, tile), unit, row_begin, stop, before);
        }
        before.finish(kBlockRows);
        if (tile == tile_end) continue;
        Unfinished<FloatRows<1>> last({a, tile});
        const auto packed = packed_tile<Format>(a.w, tile, 1);
        matrix_tiles<Format, 1>(a.x, {packed, packed}, FloatRows<1>(a, tile), unit, row_begin, stop, last);
        last.finish(kBlockRows);
    }
}

// For gate and up of one format. Its tiles are a tile of each.
template <class Format, Activation kKind>
void gated_tiles(const GatedArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    for (; row_begin < row_end; row_begin += kMaxRun) {
        const int stop = std::min(row_begin + kMaxRun, row_end);
        MatrixUnit unit(shapes_of(std::min(stop - row_begin, kBlockRows)));
        Unfinished<GatedRows<kKind>> before({a, tile_begin});
        for (int tile = tile_begin; tile < tile_end; tile++) {
            const PackedTile<Format> packed[2] = {packed_tile<Format>(a.gate, tile, 1), packed_tile<Format>(a.up, tile, 1)};
            matrix_tiles<Format, 2>(a.x, packed, GatedRows<kKind>(a, tile), unit, row_begin, stop, before);
        }
        before.finish(kBlockRows);
    }
}

}  // namespace
}  // namespace kvist::KVIST_ISA
