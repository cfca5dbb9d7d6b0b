// What differs between weight formats: how a group of 32 x 16 weights unfolds, and the float steps after its dot products.
//   acc = fma(d, float(sum u*x - offset * sum x) * scale_x, acc);  acc = fma(m, scale_x * sum x, acc)
#pragma once

#if defined(__AVX512VNNI__)
#include "weights_avx512.h"
#elif defined(__AVX2__)
#include "weights_avx2.h"
#else
#include "weights_portable.h"
#endif

namespace kvist::KVIST_ISA {
namespace {

// One row's activations of one group.
struct GroupRow {
    float scale, scaled_sum;
    const int32_t* sum16;
};

// A format's Group is a group unfolded; multiply<kRows> leaves kDotsPerRow dot products of each row, `kRows` apart, and
// step<kRows> takes those of one row through the float steps.

// What is packed in blocks; dense rows are not.
template <class Format>
concept Packed = requires { &Format::expand; };

// w = d * (u - kOffset)
template <int kMaxWeight, int kOffsetOfWeights>
struct OffsetFormat {
    static constexpr int kOffset = kOffsetOfWeights;
    static constexpr int kDotsPerRow = 1;
    struct Group {
        Weights w;
        F16 d;
    };
    template <int kRows>
    static void multiply(const Group& g, const int8_t* x, int64_t stride, Dots* dots) {
        dot_rows<kRows, 0, 8, kMaxWeight>(g.w, x, stride, dots);
    }
    template <int kRows>
    static F16 step(const Group& g, const Dots* dots, const GroupRow& x, F16 acc) {
        return fma(g.d, mul(to_float(*dots, kOffset * (x.sum16[0] + x.sum16[1])), set1(x.scale)), acc);
    }
};

// w = d * u + m
template <int kMaxWeight>
struct MinimumFormat {
    static constexpr int kDotsPerRow = 1;
    struct Group {
        Weights w;
        F16 d, m;
    };
    template <int kRows>
    static void multiply(const Group& g, const int8_t* x, int64_t stride, Dots* dots) {
        dot_rows<kRows, 0, 8, kMaxWeight>(g.w, x, stride, dots);
    }
    template <int kRows>
    static F16 step(const Group& g, const Dots* dots, const GroupRow& x, F16 acc) {
        acc = fma(g.d, mul(to_float(*dots), set1(x.scale)), acc);
        return fma(g.m, set1(x.scaled_sum), acc);
    }
};

struct Q4_0 : OffsetFormat<15, 8> {
    using Block = BlockQ4_0;
    static constexpr int kGroups = 1;
    static Group expand(const Block& b, int) { return {expand_nibbles(b.u), load_half(b.d)}; }
};

struct Q4_1 : MinimumFormat<15> {
    using Block = BlockQ4_1;
    static constexpr int kGroups = 1;
    static Group expand(const Block& b, int) { return {expand_nibbles(b.u), load_half(b.d), load_half(b.m)}; }
};

struct Q4_K : MinimumFormat<15> {
    using Block = BlockQ4_K;
    static constexpr int kGroups = 8;
    static Group expand(const Block& b, int g) {
        return {expand_nibbles(b.u[g]), mul(load_half(b.d), load_uint8(b.scale[g])),
                sub(zero(), mul(load_half(b.dmin), load_uint8(b.min[g])))};
    }
};

struct Q5_0 : OffsetFormat<31, 16> {
    using Block = BlockQ5_0;
    static constexpr int kGroups = 1;
    static Group expand(const Block& b, int) { return {expand_five(b.u, b.high), load_half(b.d)}; }
};

struct Q5_1 : MinimumFormat<31> {
    using Block = BlockQ5_1;
    static constexpr int kGroups = 1;
    static Group expand(const Block& b, int) { return {expand_five(b.u, b.high), load_half(b.d), load_half(b.m)}; }
};

struct Q5_K : MinimumFormat<31> {
    using Block = BlockQ5_K;
    static constexpr int kGroups = 8;
    static Group expand(const Block& b, int g) {
        return {expand_five(b.u[g], b.high[g]), mul(load_half(b.d), load_uint8(b.scale[g])),
                sub(zero(), mul(load_half(b.dmin), load_uint8(b.min[g])))};
    }
};

struct Q6_K {  // halves of a group have scales of their own
    using Block = BlockQ6_K;
    static constexpr int kGroups = 8;
    static constexpr int kOffset = 32;
    static constexpr int kDotsPerRow = 2;
    struct Group {
        Weights w;
        F16 d[2];
    };
    static Group expand(const Block& b, int g) {
        const F16 d = load_half(b.d);
        return {expand_six(b.low[g], b.high[g]), {mul(d, load_int8(b.scale[2 * g])), mul(d, load_int8(b.scale[2 * g + 1]))}};
    }
    template <int kRows>
    static void multiply(const Group& g, const int8_t* x, int64_t stride, Dots* dots) {
        dot_rows<kRows, 0, 4, 63>(g.w, x, stride, dots);
        dot_rows<kRows, 4, 4, 63>(g.w, x, stride, dots + kRows);
    }
    template <int kRows>
    static F16 step(const Group& g, const Dots* dots, const GroupRow& x, F16 acc) {
        acc = fma(g.d[0], mul(to_float(dots[0], kOffset * x.sum16[0]), set1(x.scale)), acc);
        return fma(g.d[1], mul(to_float(dots[kRows], kOffset * x.sum16[1]), set1(x.scale)), acc);
    }
};

#if defined(__AVX512VNNI__)

struct Q8_0 : OffsetFormat<255, 128> {
    using Block = BlockQ8_0;
    static constexpr int kGroups = 1;
    static Group expand(const Block& b, int) { return {expand_signed(b.s), load_half(b.d)}; }
};

#else

struct Q8_0 : OffsetFormat<15, 0> {
    using Block = BlockQ8_0;
    static constexpr int kGroups = 1;
    static Group expand(const Block& b, int) { return {expand_signed(b.s), load_half(b.d)}; }
    template <int kRows>
    static void multiply(const Group& g, const int8_t* x, int64_t stride, Dots* dots) {
        dot_signed<kRows>(g.w, x, stride, dots);
    }
};

#endif

}  // namespace
}  // namespace kvist::KVIST_ISA
