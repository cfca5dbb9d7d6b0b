// Compiled once per instruction set, like the kernels.
#include "baselines.h"

#include "simd.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

constexpr int kRows = 6;  // queries whose sums share the registers, as in attention
constexpr int kVectors = kStrip / kLanes;
constexpr int kPanel = 4;  // vectors of one head's values
constexpr float kLog2E = 1.44269504f;

float* row_of(const NaiveAttention& a, int head, int query) {
    return a.scores + (int64_t{head} * a.num_queries + query) * a.row();
}

// Keys that the newest of queries [.., end) sees.
int num_seen(const NaiveAttention& a, int end) { return std::min(a.first_query + end, a.num_keys); }

void transpose_keys(const NaiveAttention& a, int kv_head) {
    const int64_t stride = int64_t{a.num_kv_heads} * a.head_dim;
    float* out = a.transposed + int64_t{kv_head} * a.row() * a.head_dim;
    for (int first = 0; first < a.row(); first += kStrip)
        for (int d = 0; d < a.head_dim; d++)
            for (int j = 0; j < kStrip; j++) {
                const int key = first + j;
                *out++ = key < a.num_keys ? a.k[key * stride + kv_head * a.head_dim + d] : 0.0f;
            }
}

template <int Rows>
void score_strip(const float* const* q, const float* strip, int head_dim, F16 scale, float* const* out) {
    F16 sums[Rows][kVectors];
    for (auto& row : sums)
        for (F16& sum : row) sum = zero();
    for (int d = 0; d < head_dim; d++) {
        F16 keys[kVectors];
        for (int c = 0; c < kVectors; c++) keys[c] = load(strip + d * kStrip + c * kLanes);
        for (int i = 0; i < Rows; i++) {
            const F16 x = set1(q[i][d]);
            for (int c = 0; c < kVectors; c++) sums[i][c] = fma(x, keys[c], sums[i][c]);
        }
    }
    for (int i = 0; i < Rows; i++)
        for (int c = 0; c < kVectors; c++) store(out[i] + c * kLanes, mul(sums[i][c], scale));
}

void scores(const NaiveAttention& a, int head, int begin, int end) {
    const int kv_head = head / (a.num_q_heads / a.num_kv_heads);
    const float* keys = a.transposed + int64_t{kv_head} * a.row() * a.head_dim;
    const F16 scale = set1(a.scale * kLog2E);  // the softmax is one of powers of two
    const int seen = num_seen(a, end);
    for (int first = 0; first < seen; first += kStrip) {
        const float* strip = keys + int64_t{first} * a.head_dim;
        for (int query = begin; query < end; query += kRows) {
            const int rows = std::min(kRows, end - query);
            const float* q[kRows];
            float* out[kRows];
            for (int i = 0; i < rows; i++) {
                q[i] = a.q + (int64_t{query + i} * a.num_q_heads + head) * a.head_dim;
                out[i] = row_of(a, head, query + i) + first;
            }
            if (rows == kRows) score_strip<kRows>(q, strip, a.head_dim, scale, out);
            else
                for (int i = 0; i < rows; i++) score_strip<1>(q + i, strip, a.head_dim, scale, out + i);
        }
    }
}

// Softmax of one row, up to what the newest of queries [.., end) sees; `put` takes two vectors of weights from place j on, of which
// scores up to them have been read.
template <class Put>
void normalize_row(const NaiveAttention& a, int head, int query, int end, Put put) {
    const int width = (num_seen(a, end) + kStrip - 1) / kStrip * kStrip;
    float* s = row_of(a, head, query);
    const int seen = std::min(a.first_query + query + 1, a.num_keys);
    std::fill(s + seen, s + width, -2e30f);
    F16 top = load(s);
    for (int j = kLanes; j < width; j += kLanes) top = max(top, load(s + j));
    const F16 largest = set1(reduce_max(top));
    F16 sum = zero();
    for (int j = 0; j < width; j += kLanes) {
        const F16 weight = exp2_negative(sub(load(s + j), largest));
        sum = add(sum, weight);
        store(s + j, weight);
    }
    const F16 inverse = set1(1.0f / reduce_add(sum));
    for (int j = 0; j < width; j += 2 * kLanes) put(s, j, mul(load(s + j), inverse), mul(load(s + j + kLanes), inverse));
}

void softmax(const NaiveAttention& a, int head, int begin, int end) {
    for (int query = begin; query < end; query++)
        normalize_row(a, head, query, end, [](float* row, int j, F16 early, F16 late) {
            store(row + j, early);
            store(row + j + kLanes, late);
        });
}

template <int Rows, int Vectors>
void weigh_panel(const float* const* weights, const float* v, int64_t stride, int num_keys, float* const* out) {
    F16 sums[Rows][Vectors];
    for (auto& row : sums)
        for (F16& sum : row) sum = zero();
    for (int key = 0; key < num_keys; key++, v += stride) {
        F16 values[Vectors];
        for (int c = 0; c < Vectors; c++) values[c] = load(v + c * kLanes);
        for (int i = 0; i < Rows; i++) {
            const F16 w = set1(weights[i][key]);
            for (int c = 0; c < Vectors; c++) sums[i][c] = fma(w, values[c], sums[i][c]);
        }
    }
    for (int i = 0; i < Rows; i++)
        for (int c = 0; c < Vectors; c++) store(out[i] + c * kLanes, sums[i][c]);
}

void values(const NaiveAttention& a, int head, int begin, int end) {
    const int kv_head = head / (a.num_q_heads / a.num_kv_heads);
    const int64_t stride = int64_t{a.num_kv_heads} * a.head_dim;
    for (int query = begin; query < end; query += kRows) {
        const int rows = std::min(kRows, end - query), seen = num_seen(a, query + rows);
        const float* weights[kRows];
        for (int i = 0; i < rows; i++) weights[i] = row_of(a, head, query + i);
        for (int column = 0; column < a.head_dim;) {
            const float* v = a.v + int64_t{kv_head} * a.head_dim + column;
            float* out[kRows];
            for (int i = 0; i < rows; i++) out[i] = a.out + (int64_t{query + i} * a.num_q_heads + head) * a.head_dim + column;
            const bool whole = a.head_dim - column >= kPanel * kLanes;
            if (whole && rows == kRows) weigh_panel<kRows, kPanel>(weights, v, stride, seen, out);
            else if (whole)
                for (int i = 0; i < rows; i++) weigh_panel<1, kPanel>(weights + i, v, stride, seen, out + i);
            else
                for (int i = 0; i < rows; i++) weigh_panel<1, 1>(weights + i, v, stride, seen, out + i);
            column += whole ? kPanel * kLanes : kLanes;
        }
    }
}

}  // namespace
}  // namespace kvist::KVIST_ISA

#if defined(KVIST_MATRIX_UNIT)
#include "baselines_matrix.h"
#endif

namespace kvist::KVIST_ISA {

const Baselines& baselines() {
#if defined(KVIST_MATRIX_UNIT)
    static const Baselines table = {kDepth, lay_out_pairs, scores_on_unit, softmax_to_bfloat, values_on_unit};
#else
    static const Baselines table = {kLanes, transpose_keys, scores, softmax, values};
#endif
    return table;
}

}  // namespace kvist::KVIST_ISA
