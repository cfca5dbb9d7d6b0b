// The kernels that work row by row: norms, quantization of activations, gated activation, rotary embedding and embedding. Widths
// are multiples of 16 (weights are padded by the packer).
#include "activation.h"
#include "kernels.h"
#include "scratch.h"
#include "simd.h"

#include <algorithm>

namespace kvist::KVIST_ISA {

bool is_finite(const float* x, int64_t width);

namespace {

constexpr int kMaxWidth = 65536;

struct RowRoom {
    alignas(64) float numbers[kMaxWidth];
};

#if defined(KVIST_MATRIX_UNIT)

struct QuantRow {
    explicit QuantRow(const Activations& out, int64_t row) : x(out.bfloat + row * out.stride) {}
    uint16_t* x;
};

void quantize_group(const float* x, const QuantRow& out, int64_t g) {
    store_bfloat(out.x + g * kGroup, load(x));
    store_bfloat(out.x + g * kGroup + kLanes, load(x + kLanes));
}

void poison_groups(const QuantRow& out, int64_t begin, int64_t end) {
    constexpr uint16_t kNaN = 0x7fc0;
    std::fill(out.x + begin * kGroup, out.x + end * kGroup, kNaN);
}

#else

struct QuantRow {
    explicit QuantRow(const Activations& out, int64_t row)
        : q(out.q + row * out.k), scale(out.scale + row * (out.k / kGroup)),
          scaled_sum(out.scaled_sum + row * (out.k / kGroup)), sum16(out.sum16 + row * (out.k / kLanes)) {}
    int8_t* q;
    float* scale;
    float* scaled_sum;
    int32_t* sum16;
};

// Quantize one group of 32: scale = max |x| / 127 and q = round(x / scale).
void quantize_group(const float* x, const QuantRow& out, int64_t g) {
    const F16 a = load(x), b = load(x + kLanes);
    const float top = reduce_max(max(abs(a), abs(b)));
    const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
    int8_t* q = out.q + g * kGroup;
    store_int8(q, round(mul(a, set1(inverse))));
    store_int8(q + kLanes, round(mul(b, set1(inverse))));
    const int32_t sums[2] = {sum_int8(q), sum_int8(q + kLanes)};
    out.scale[g] = top / 127.0f;
    out.sum16[2 * g] = sums[0];
    out.sum16[2 * g + 1] = sums[1];
    out.scaled_sum[g] = static_cast<float>(sums[0] + sums[1]) * out.scale[g];
}

void poison_groups(const QuantRow& out, int64_t begin, int64_t end) {
    std::fill(out.q + begin * kGroup, out.q + end * kGroup, int8_t{0});
    std::fill(out.sum16 + 2 * begin, out.sum16 + 2 * end, 0);
    std::fill(out.scale + begin, out.scale + end, NAN);
    std::fill(out.scaled_sum + begin, out.scaled_sum + end, NAN);
}

#endif

// Groups that hold a number that is not finite become NaN, so that whatever is computed from their row shows.
void quantize_checked(const float* x, const QuantRow& out, int64_t begin, int64_t end) {
    if (!is_finite(x, (end - begin) * kGroup)) return poison_groups(out, begin, end);
    for (int64_t g = begin; g < end; g++) quantize_group(x + (g - begin) * kGroup, out, g);
}

void quantize_row(const float* x, const Activations& out, int64_t row) {
    quantize_checked(x, QuantRow(out, row), 0, out.k / kGroup);
}

// Of kRows rows side by side, whose chains of sums do not wait for one another.
template <int kRows>
void inverse_rms(RowBuffer x, int row, int width, float eps, float* inverse) {
    const float* from = x.data + row * x.stride;
    F16 sum[kRows];
    for (int r = 0; r < kRows; r++) sum[r] = zero();
    for (int i = 0; i < width; i += kLanes)
        for (int r = 0; r < kRows; r++) {
            const F16 v = load(from + r * x.stride + i);
            sum[r] = fma(v, v, sum[r]);
        }
    for (int r = 0; r < kRows; r++) inverse[r] = 1.0f / std::sqrt(reduce_add(sum[r]) / static_cast<float>(width) + eps);
}

// Calls write(row, inverse root of the mean square) for each row.
template <class Write>
void norm_rows(RowBuffer x, int width, float eps, int row, int row_end, Write write) {
    constexpr int kAtOnce = 4;
    float inverse[kAtOnce];
    for (; row + kAtOnce <= row_end; row += kAtOnce) {
        inverse_rms<kAtOnce>(x, row, width, eps, inverse);
        for (int r = 0; r < kAtOnce; r++) write(row + r, set1(inverse[r]));
    }
    for (; row < row_end; row++) {
        inverse_rms<1>(x, row, width, eps, inverse);
        write(row, set1(inverse[0]));
    }
}

// One packed weight as a float; `n` is its output, `k` its input.
float half_at(const uint16_t* p) {
    _Float16 h;
    std::memcpy(&h, p, 2);
    return static_cast<float>(h);
}

float weight_at(const PackedMatrix& w, int64_t n, int k) {
    const int64_t tile = n / kTile;
    const int lane = static_cast<int>(n % kTile), group = k / kGroup, step = (k % kGroup) / 4;
    const int byte = 4 * lane + k % 4;  // within a step
    auto nibble = [&](const uint8_t* u) { return (u[64 * (step % 4) + byte] >> (step < 4 ? 0 : 4)) & 15; };
    switch (w.format) {
        case Format::q4_0: {
            const auto& b = static_cast<const BlockQ4_0*>(w.data)[tile * (w.k / 32) + group];
            return half_at(b.d + lane) * static_cast<float>(nibble(b.u) - 8);
        }
        case Format::q4_1: {
            const auto& b = static_cast<const BlockQ4_1*>(w.data)[tile * (w.k / 32) + group];
            return half_at(b.d + lane) * static_cast<float>(nibble(b.u)) + half_at(b.m + lane);
        }
        case Format::q4_k: {
            const auto& b = static_cast<const BlockQ4_K*>(w.data)[tile * (w.k / 256) + group / 8];
            const int g = group % 8;
            return half_at(b.d + lane) * b.scale[g][lane] * static_cast<float>(nibble(b.u[g])) -
                   half_at(b.dmin + lane) * b.min[g][lane];
        }
        case Format::q5_0: {
            const auto& b = static_cast<const BlockQ5_0*>(w.data)[tile * (w.k / 32) + group];
            return half_at(b.d + lane) * static_cast<float>((nibble(b.u) | ((b.high[byte] >> step) & 1) << 4) - 16);
        }
        case Format::q5_1: {
            const auto& b = static_cast<const BlockQ5_1*>(w.data)[tile * (w.k / 32) + group];
            return half_at(b.d + lane) * static_cast<float>(nibble(b.u) | ((b.high[byte] >> step) & 1) << 4) +
                   half_at(b.m + lane);
        }
        case Format::q5_k: {
            const auto& b = static_cast<const BlockQ5_K*>(w.data)[tile * (w.k / 256) + group / 8];
            const int g = group % 8;
            const int u = nibble(b.u[g]) | ((b.high[g][byte] >> step) & 1) << 4;
            return half_at(b.d + lane) * b.scale[g][lane] * static_cast<float>(u) - half_at(b.dmin + lane) * b.min[g][lane];
        }
        case Format::q6_k: {
            const auto& b = static_cast<const BlockQ6_K*>(w.data)[tile * (w.k / 256) + group / 8];
            const int g = group % 8, half = step / 4;
            const int high = (b.high[g][64 * (step % 2) + byte] >> (2 * (step / 2))) & 3;
            return half_at(b.d + lane) * b.scale[2 * g + half][lane] * static_cast<float>((nibble(b.low[g]) | high << 4) - 32);
        }
        case Format::q8_0: {
            const auto& b = static_cast<const BlockQ8_0*>(w.data)[tile * (w.k / 32) + group];
            return half_at(b.d + lane) * static_cast<float>(b.s[64 * step + byte]);
        }
        case Format::f32: return static_cast<const float*>(w.data)[n * w.k + k];
        case Format::f16: return half_at(static_cast<const uint16_t*>(w.data) + n * w.k + k);
        case Format::bf16: {
            const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(w.data)[n * w.k + k]) << 16;
            float x;
            std::memcpy(&x, &bits, 4);
            return x;
        }
    }
    return 0.0f;
}

}  // namespace

bool is_finite(const float* x, int64_t width) {
    F16 poison = zero();  // 0 * x is 0, or NaN for what is not finite
    for (int64_t i = 0; i < width; i += kLanes) poison = fma(load(x + i), zero(), poison);
    return reduce_add(poison) == 0.0f;
}

void quantize(RowBuffer x, Activations q, int row_begin, int row_end) {
    for (int row = row_begin; row < row_end; row++) quantize_row(x.data + row * x.stride, q, row);
}

void quantize_groups(RowBuffer x, Activations q, int group_begin, int group_end, int row_begin, int row_end) {
    for (int row = row_begin; row < row_end; row++)
        quantize_checked(x.data + row * x.stride + group_begin * kGroup, QuantRow(q, row), group_begin, group_end);
}

// activation(gate) * up, quantized, for groups [group_begin, group_end); gate and up begin at that group of row_begin.
void gated_quantize_groups(RowBuffer gate, RowBuffer up, Activation kind, Activations q, int group_begin, int group_end,
                           int row_begin, int row_end) {
    alignas(64) float values[kGroup];
    for (int row = row_begin; row < row_end; row++)
        for (int group = group_begin; group < group_end; group++) {
            const float* g = gate.data + (row - row_begin) * gate.stride + (group - group_begin) * kGroup;
            const float* u = up.data + (row - row_begin) * up.stride + (group - group_begin) * kGroup;
            for (int i = 0; i < kGroup; i += kLanes)
                store(values + i, mul(activate_to_quantize(load(g + i), kind), load(u + i)));
            quantize_checked(values, QuantRow(q, row), group, group + 1);
        }
}

void rms_norm(RowBuffer x, const float* w, float eps, int width, int heads, RowBuffer y, int row_begin, int row_end) {
    for (int head = 0; head < heads; head++) {
        const int64_t column = int64_t{head} * width;
        norm_rows({x.data + column, x.stride}, width, eps, row_begin, row_end, [&](int row, F16 inverse) {
            const float* from = x.data + row * x.stride + column;
            float* to = y.data + row * y.stride + column;
            for (int i = 0; i < width; i += kLanes) store(to + i, mul(mul(load(from + i), inverse), load(w + i)));
        });
    }
}

void rms_norm_quantize(RowBuffer x, const float* w, float eps, Activations q, int row_begin, int row_end) {
    norm_rows(x, static_cast<int>(q.k), eps, row_begin, row_end, [&](int row, F16 inverse) {
        const float* from = x.data + row * x.stride;
        const auto normed = [&](int64_t i) { return mul(mul(load(from + i), inverse), load(w + i)); };
#if defined(KVIST_MATRIX_UNIT)
        // A number that is not finite leaves NaN at its place, which shows in all that is computed from the row.
        uint16_t* to = q.bfloat + row * q.stride;
        for (int64_t i = 0; i < q.k; i += kGroup) store_bfloat2(to + i, normed(i), normed(i + kLanes));
#else
        float* rows = scratch<RowRoom>().numbers;
        for (int64_t i = 0; i < q.k; i += kLanes) store(rows + i, normed(i));
        quantize_row(rows, q, row);
#endif
    });
}

void gated(RowBuffer gate, RowBuffer up, Activation kind, bool to_quantize, int width, RowBuffer y, int row_begin,
           int row_end) {
    for (int row = row_begin; row < row_end; row++) {
        const float* g = gate.data + row * gate.stride;
        const float* u = up.data + row * up.stride;
        for (int i = 0; i < width; i += kLanes) {
            const F16 x = load(g + i);
            store(y.data + row * y.stride + i,
                  mul(to_quantize ? activate_to_quantize(x, kind) : activate(x, kind), load(u + i)));
        }
    }
}

void gated_quantize(RowBuffer gate, RowBuffer up, Activation kind, Activations q, int row_begin, int row_end) {
    float* values = scratch<RowRoom>().numbers;
    for (int row = row_begin; row < row_end; row++) {
        const RowBuffer one_gate = {gate.data + row * gate.stride, 0}, one_up = {up.data + row * up.stride, 0};
        gated(one_gate, one_up, kind, true, static_cast<int>(q.k), {values, 0}, 0, 1);
        quantize_row(values, q, row);
    }
}

void rope(RowBuffer x, const RopeArgs& rope, int heads, int row_begin, int row_end) {
    const int half = rope.head_dim / 2;
    for (int row = row_begin; row < row_end; row++) {
        const float* __restrict cosine = rope.cos_sin + int64_t{row} * rope.head_dim;
        const float* __restrict sine = cosine + half;
        for (int head = 0; head < heads; head++) {
            float* __restrict low = x.data + row * x.stride + int64_t{head} * rope.head_dim;
            float* __restrict high = low + half;
            for (int i = 0; i < half; i++) {
                const float a = low[i], b = high[i];
                low[i] = a * cosine[i] - b * sine[i];
                high[i] = b * cosine[i] + a * sine[i];
            }
        }
    }
}

void embed(const PackedMatrix& table, const int32_t* token_ids, float scale, RowBuffer x, int row_begin, int row_end) {
    for (int row = row_begin; row < row_end; row++)
        for (int k = 0; k < table.k; k++) x.data[row * x.stride + k] = weight_at(table, token_ids[row], k) * scale;
}

void add(RowBuffer x, RowBuffer y, int width, int row_begin, int row_end) {
    for (int row = row_begin; row < row_end; row++) {
        float* to = x.data + row * x.stride;
        const float* from = y.data + row * y.stride;
        for (int i = 0; i < width; i++) to[i] += from[i];
    }
}

}  // namespace kvist::KVIST_ISA
