// What one core can do at most with an instruction set, for `kvist bench kernels` to compare the kernels with: loops that
// do nothing but the set's own instructions, on registers, and a loop that does nothing but read.
#pragma once

#include <cstdint>

namespace kvist {

struct Ceilings {
    // Each runs `iterations` rounds and returns the multiplications and additions done.
    double (*int8_products)(int64_t iterations);
    double (*bfloat_products)(int64_t iterations);  // null where no kernel multiplies bfloat16
    double (*float_products)(int64_t iterations);
    // Reads `count` floats, a multiple of 64, once.
    float (*read)(const float* data, int64_t count);
};

}  // namespace kvist
