// The activations between gate and up.
#pragma once

#include "linear.h"
#include "simd.h"

namespace kvist::KVIST_ISA {

// exp: a function for e^x.
template <class Exp>
inline F16 activate_by(F16 x, Activation kind, Exp exp) {
    if (kind == Activation::silu) return div(x, add(set1(1.0f), exp(sub(zero(), x))));
    // 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    const F16 cube = mul(mul(x, x), x);
    const F16 u = mul(set1(0.7978845608f), fma(set1(0.044715f), cube, x));
    return div(x, add(set1(1.0f), exp(mul(set1(-2.0f), u))));
}

inline F16 activate(F16 x, Activation kind) {
    return activate_by(x, kind, [](F16 y) { return exp(y); });
}

// e^x within 2^-13; NaN stays NaN. 2^fraction is a cubic that meets 1 and 2.
inline F16 rough_exp(F16 x) {
    const F16 y = mul(x, set1(1.44269504f)), r = fraction(y);
    F16 p = set1(0.07751164f);
    p = fma(p, r, set1(0.22748836f));
    p = fma(p, r, set1(0.695f));
    p = fma(p, r, set1(1.0f));
    return scale_exp2_floor(p, y);
}

// For what goes on as quantized activations: where those are bfloat16, rounding loses 2^-9.
inline F16 activate_to_quantize(F16 x, Activation kind) {
#if defined(KVIST_MATRIX_UNIT)
    return activate_by(x, kind, [](F16 y) { return rough_exp(y); });
#else
    return activate(x, kind);
#endif
}

}  // namespace kvist::KVIST_ISA
