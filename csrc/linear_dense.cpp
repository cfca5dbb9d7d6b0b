// Linear with dense weights and float activations: y[row, n] (+)= dot(x[row], w[n]) (+ bias[n]). A dot product is sixteen
// partial sums in lane order and a fixed tree, so blocks of rows and outputs change no bit; they share the loads.
#include "kernels.h"
#include "simd.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kRows = 4, kOutputs = 4;  // as many sums as fit the registers
#else
constexpr int kRows = 2, kOutputs = 2;
#endif
constexpr int kRowRun = 64;  // rows whose activations stay in the cache while the weights pass

struct Dense {
    const PackedMatrix& w;
    RowBuffer x, y;
    bool accumulate;
};

template <int kR, int kN, class LoadAt>
void block(const Dense& a, int row, int n, LoadAt load_at) {
    const int64_t k = a.w.k;
    const float* x = a.x.data + row * a.x.stride;
    F16 sum[kR][kN];
    for (int r = 0; r < kR; r++)
        for (int i = 0; i < kN; i++) sum[r][i] = zero();
    for (int64_t at = 0; at < k; at += kLanes) {
        F16 in[kR];
        for (int r = 0; r < kR; r++) in[r] = load(x + r * a.x.stride + at);
        for (int i = 0; i < kN; i++) {
            const F16 w = load_at((int64_t{n} + i) * k + at);
            for (int r = 0; r < kR; r++) sum[r][i] = fma(in[r], w, sum[r][i]);
        }
    }
    for (int r = 0; r < kR; r++)
        for (int i = 0; i < kN; i++) {
            float& out = a.y.data[(row + r) * a.y.stride + n + i];
            const float value = reduce_add(sum[r][i]) + (a.w.bias ? a.w.bias[n + i] : 0.0f);
            out = a.accumulate ? out + value : value;
        }
}

template <int kN, class LoadAt>
void rows_of(const Dense& a, int row, int row_end, int n, LoadAt load_at) {
    for (; row + kRows <= row_end; row += kRows) block<kRows, kN>(a, row, n, load_at);
    for (; row < row_end; row++) block<1, kN>(a, row, n, load_at);
}

template <class LoadAt>
void dense(const Dense& a, int n_begin, int n_end, int rows, LoadAt load_at) {
    for (int row = 0; row < rows; row += kRowRun) {
        const int row_end = std::min(row + kRowRun, rows);
        int n = n_begin;
        for (; n + kOutputs <= n_end; n += kOutputs) rows_of<kOutputs>(a, row, row_end, n, load_at);
        for (; n < n_end; n++) rows_of<1>(a, row, row_end, n, load_at);
    }
}

}  // namespace

void linear_dense(const PackedMatrix& w, RowBuffer x, RowBuffer y, bool accumulate, int n_begin, int n_end, int rows) {
    const Dense a = {w, x, y, accumulate};
    const auto* f32 = static_cast<const float*>(w.data);
    const auto* h16 = static_cast<const uint16_t*>(w.data);
    switch (w.format) {
        case Format::f32: return dense(a, n_begin, n_end, rows, [=](int64_t i) { return load(f32 + i); });
        case Format::f16: return dense(a, n_begin, n_end, rows, [=](int64_t i) { return load_half(h16 + i); });
        case Format::bf16: return dense(a, n_begin, n_end, rows, [=](int64_t i) { return load_bfloat(h16 + i); });
        default: return;
    }
}

}  // namespace kvist::KVIST_ISA
