// A group's weights as integers, multiplied in plain C++: what the other sets are compared with.
#pragma once

#include "packed.h"
#include "simd.h"

namespace kvist::KVIST_ISA {
namespace {

struct Weights {
    int32_t step[8][kTile][4];
};
struct Dots {
    int32_t v[kTile];
};
// out[r]: dot products of row r's activations, 4 * kSteps of them, with the steps from kFirst; row r stands at x + r * stride.
template <int kRows, int kFirst, int kSteps, int kMax>
inline void dot_rows(const Weights& w, const int8_t* x, int64_t stride, Dots* out) {
    for (int r = 0; r < kRows; r++) {
        out[r] = {};
        for (int s = kFirst; s < kFirst + kSteps; s++)
            for (int n = 0; n < kTile; n++)
                for (int k = 0; k < 4; k++) out[r].v[n] += w.step[s][n][k] * x[r * stride + 4 * s + k];
    }
}
template <int kRows>
inline void dot_signed(const Weights& w, const int8_t* x, int64_t stride, Dots* out) {
    dot_rows<kRows, 0, 8, 128>(w, x, stride, out);
}
inline F16 to_float(const Dots& d, int32_t minus) {
    return lanes([&](int i) { return static_cast<float>(d.v[i] - minus); });
}
inline F16 to_float(const Dots& d) { return to_float(d, 0); }
inline Weights expand_nibbles(const uint8_t* u) {
    Weights w;
    for (int s = 0; s < 4; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) {
                const uint8_t both = u[64 * s + 4 * n + k];
                w.step[s][n][k] = both & 15;
                w.step[s + 4][n][k] = both >> 4;
            }
    return w;
}
inline Weights expand_signed(const int8_t* s8) {
    Weights w;
    for (int s = 0; s < 8; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) w.step[s][n][k] = s8[64 * s + 4 * n + k];
    return w;
}
inline Weights expand_six(const uint8_t* low, const uint8_t* high) {
    Weights w = expand_nibbles(low);
    for (int s = 0; s < 8; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) {
                const int two = (high[64 * (s % 2) + 4 * n + k] >> (2 * (s / 2))) & 3;
                w.step[s][n][k] |= two << 4;
            }
    return w;
}
inline Weights expand_five(const uint8_t* low, const uint8_t* high) {
    Weights w = expand_nibbles(low);
    for (int s = 0; s < 8; s++)
        for (int n = 0; n < kTile; n++)
            for (int k = 0; k < 4; k++) w.step[s][n][k] |= ((high[4 * n + k] >> s) & 1) << 4;
    return w;
}
constexpr int kMaxRows = 4;
constexpr int kCachedRows = 4;

}  // namespace
}  // namespace kvist::KVIST_ISA
