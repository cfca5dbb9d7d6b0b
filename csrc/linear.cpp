// The quantized linear, for all weight formats.
#if defined(KVIST_MATRIX_UNIT)
#include "linear_matrix.h"
#else
#include "linear_int8.h"
#endif

namespace kvist::KVIST_ISA {

void linear(const LinearArgs& a, int tile_begin, int tile_end, int row_begin, int row_end) {
    switch (a.w.format) {
        case Format::q4_0: return linear_tiles<Q4_0>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q4_1: return linear_tiles<Q4_1>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q4_k: return linear_tiles<Q4_K>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q5_0: return linear_tiles<Q5_0>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q5_1: return linear_tiles<Q5_1>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q5_k: return linear_tiles<Q5_K>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q6_k: return linear_tiles<Q6_K>(a, tile_begin, tile_end, row_begin, row_end);
        case Format::q8_0: return linear_tiles<Q8_0>(a, tile_begin, tile_end, row_begin, row_end);
        default: return;
    }
}

}  // namespace kvist::KVIST_ISA
