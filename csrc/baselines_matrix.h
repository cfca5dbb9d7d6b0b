// Part of baselines.cpp: its passes on the matrix unit, as attention_matrix.h multiplies: bfloat16 numbers, sums in float32. A score is written
// as float32; its weight, a bfloat16 number, takes the place of the first half of it.
#pragma once

#include "matrix_unit.h"

namespace kvist::KVIST_ISA {
namespace {

constexpr int kDepth = 2 * kTileRows;  // numbers that a product adds up
constexpr int kMaxHeadDim = 256;
static_assert(kStrip == kDepth && kLanes == kTileRows);

// 0 to 3: sums, 4 and 5: queries or weights, 6 and 7: keys or values.
TileShapes shapes_of(int num_rows) {
    const auto rows = static_cast<uint8_t>(num_rows);
    return {{rows, rows, rows, rows, rows, rows, kTileRows, kTileRows}, {64, 64, 64, 64, 64, 64, 64, 64}};
}

// Of `transposed`: first a head's keys, [row / 16][head_dim / 2][16 keys][2], then its values, [row / 2][head_dim][2].
uint16_t* keys_of(const NaiveAttention& a, int kv_head) {
    return reinterpret_cast<uint16_t*>(a.transposed + int64_t{kv_head} * a.row() * a.head_dim);
}
uint16_t* values_of(const NaiveAttention& a, int kv_head) { return keys_of(a, kv_head) + int64_t{a.row()} * a.head_dim; }

uint16_t bfloat_of(float x) {
    alignas(64) float from[kLanes] = {x};
    alignas(64) uint16_t to[kLanes];
    store_bfloat(to, load(from));
    return to[0];
}

void lay_out_pairs(const NaiveAttention& a, int kv_head) {
    const int64_t stride = int64_t{a.num_kv_heads} * a.head_dim;
    uint16_t *keys = keys_of(a, kv_head), *values = values_of(a, kv_head);
    for (int key = 0; key < a.row(); key++)
        for (int d = 0; d < a.head_dim; d++) {
            const int64_t at = key * stride + kv_head * a.head_dim + d;
            const bool is_there = key < a.num_keys;
            uint16_t* strip = keys + int64_t{key / kLanes} * kLanes * a.head_dim;
            strip[d / 2 * 2 * kLanes + key % kLanes * 2 + d % 2] = is_there ? bfloat_of(a.k[at]) : 0;
            values[int64_t{key / 2} * 2 * a.head_dim + 2 * d + key % 2] = is_there ? bfloat_of(a.v[at]) : 0;
        }
}

// Sums 0 to 3 of 16 columns each, as far as `columns` go; stride of `b` from one 16 columns to the next in numbers.
void multiply_columns(const void* a, int64_t a_stride, const uint16_t* b, int64_t b_stride, int64_t next, int columns) {
    tile_load<4>(a, a_stride);
    tile_load<6>(b, b_stride);
    tile_dot_bfloat<0, 4, 6>();
    tile_load<7>(b + next, b_stride);
    tile_dot_bfloat<1, 4, 7>();
    if (columns <= kDepth) return;
    tile_load<6>(b + 2 * next, b_stride);
    tile_dot_bfloat<2, 4, 6>();
    tile_load<7>(b + 3 * next, b_stride);
    tile_dot_bfloat<3, 4, 7>();
}
void zero_sums() {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
}
void store_sums(float* to, int64_t stride, int columns) {
    tile_store<0>(to, stride);
    tile_store<1>(to + kLanes, stride);
    if (columns <= kDepth) return;
    tile_store<2>(to + 2 * kLanes, stride);
    tile_store<3>(to + 3 * kLanes, stride);
}

void scores_on_unit(const NaiveAttention& a, int head, int begin, int end) {
    const uint16_t* keys = keys_of(a, head / (a.num_q_heads / a.num_kv_heads));
    const F16 scale = set1(a.scale * kLog2E);
    alignas(64) uint16_t queries[kTileRows][kMaxHeadDim];
    for (int query = begin; query < end; query += kTileRows) {
        const int rows = std::min(kTileRows, end - query), seen = num_seen(a, query + rows);
        for (int i = 0; i < rows; i++) {
            const float* q = a.q + (int64_t{query + i} * a.num_q_heads + head) * a.head_dim;
            for (int d = 0; d < a.head_dim; d += kLanes) store_bfloat(queries[i] + d, mul(load(q + d), scale));
        }
        MatrixUnit unit(shapes_of(rows));
        for (int first = 0; first < seen; first += 2 * kStrip) {
            zero_sums();
            for (int d = 0; d < a.head_dim; d += kDepth)
                multiply_columns(queries[0] + d, sizeof queries[0], keys + int64_t{first} * a.head_dim + d * kLanes, kTileBytes,
                                 int64_t{kLanes} * a.head_dim, a.row() - first);
            store_sums(row_of(a, head, query) + first, int64_t{4} * a.row(), a.row() - first);
        }
    }
}

void softmax_to_bfloat(const NaiveAttention& a, int head, int begin, int end) {
    for (int query = begin; query < end; query++)
        normalize_row(a, head, query, end, [](float* row, int j, F16 early, F16 late) {
            store_bfloat2(reinterpret_cast<uint16_t*>(row) + j, early, late);  // behind what is read next
        });
}

void values_on_unit(const NaiveAttention& a, int head, int begin, int end) {
    const uint16_t* values = values_of(a, head / (a.num_q_heads / a.num_kv_heads));
    for (int query = begin; query < end; query += kTileRows) {
        const int rows = std::min(kTileRows, end - query), seen = num_seen(a, query + rows);
        MatrixUnit unit(shapes_of(rows));
        const auto* weights = reinterpret_cast<const uint16_t*>(row_of(a, head, query));
        for (int d = 0; d < a.head_dim; d += 2 * kDepth) {
            zero_sums();
            for (int key = 0; key < seen; key += kDepth)
                multiply_columns(weights + key, int64_t{4} * a.row(), values + int64_t{key} * a.head_dim + 2 * d,
                                 int64_t{4} * a.head_dim, 2 * kLanes, a.head_dim - d);
            store_sums(a.out + (int64_t{query} * a.num_q_heads + head) * a.head_dim + d,
                       int64_t{4} * a.num_q_heads * a.head_dim, a.head_dim - d);
        }
    }
}

}  // namespace
}  // namespace kvist::KVIST_ISA
