// Compiled once per instruction set, like the kernels. Numbers pass through empty assembly, so that no product is taken out
// of its loop and no two chains of sums are found to be the same.
#include "ceilings.h"

#include "matrix_unit.h"
#include "simd.h"

namespace kvist::KVIST_ISA {
namespace {

template <class T>
inline void make_opaque(T& x) {
    asm volatile("" : "+m"(x));
}

#if defined(__AMX_INT8__)

// Four accumulators from two tiles of rows and two of weights: what a blocked product keeps in the eight tile registers.
template <class Multiply>
void multiply_tiles(int64_t iterations, Multiply multiply) {
    alignas(64) int8_t ones[kTileRows][kTileBytes];
    std::memset(ones, 1, sizeof ones);
    make_opaque(ones);
    const MatrixUnit unit({{16, 16, 16, 16, 16, 16, 16, 16}, {64, 64, 64, 64, 64, 64, 64, 64}});
    tile_load<4>(ones, kTileBytes);
    tile_load<5>(ones, kTileBytes);
    tile_load<6>(ones, kTileBytes);
    tile_load<7>(ones, kTileBytes);
    for (int64_t i = 0; i < iterations; i++) multiply();
}

double int8_products(int64_t iterations) {
    multiply_tiles(iterations, [] {
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    });
    return 4.0 * 2 * 16 * 16 * 64 * iterations;
}

double bfloat_products(int64_t iterations) {
    multiply_tiles(iterations, [] {
        tile_dot_bfloat<0, 4, 6>();
        tile_dot_bfloat<1, 4, 7>();
        tile_dot_bfloat<2, 5, 6>();
        tile_dot_bfloat<3, 5, 7>();
    });
    return 4.0 * 2 * 16 * 16 * 32 * iterations;
}

#elif defined(__AVX512VNNI__)

double int8_products(int64_t iterations) {
    constexpr int kChains = 12;  // more than latency times throughput
    __m512i acc[kChains] = {};
    __m512i u = _mm512_set1_epi8(1), s = _mm512_set1_epi8(1);
    make_opaque(acc);
    for (int64_t i = 0; i < iterations; i++) {
        asm volatile("" : "+v"(u), "+v"(s));
        for (auto& a : acc) a = _mm512_dpbusd_epi32(a, u, s);
    }
    make_opaque(acc);
    return 2.0 * 64 * kChains * iterations;
}

#elif defined(__AVX2__)

// As the kernels do: products in pairs, added up in sixteen bits before they are widened.
double int8_products(int64_t iterations) {
    constexpr int kChains = 6;
    __m256i acc[kChains] = {}, s[kChains] = {};
    __m256i u = _mm256_set1_epi8(1);
    make_opaque(acc), make_opaque(s);
    for (int64_t i = 0; i < iterations; i++) {
        asm volatile("" : "+x"(u));
        for (int c = 0; c < kChains; c++) acc[c] = _mm256_add_epi16(acc[c], _mm256_maddubs_epi16(u, s[c]));
    }
    make_opaque(acc);
    return 2.0 * 32 * kChains * iterations;
}

#else

double int8_products(int64_t iterations) {
    constexpr int kCount = 4096;
    static int8_t u[kCount], s[kCount];
    int32_t sum = 0;
    for (int64_t i = 0; i < iterations; i++) {
        asm volatile("" : : "r"(u), "r"(s) : "memory");
        for (int k = 0; k < kCount; k++) sum += u[k] * s[k];
    }
    asm volatile("" : : "r"(sum));
    return 2.0 * kCount * iterations;
}

#endif

double float_products(int64_t iterations) {
#if defined(__AVX512F__)
    constexpr int kChains = 12;
#else
    constexpr int kChains = 6;
#endif
    F16 acc[kChains];
    for (auto& a : acc) a = set1(1.0f);
    make_opaque(acc);
    const F16 x = set1(0.5f), y = set1(0.25f);
    for (int64_t i = 0; i < iterations; i++)
        for (auto& a : acc) a = fma(a, x, y);
    float sum = 0;
    for (auto& a : acc) sum += reduce_max(a);
    make_opaque(sum);
    return 2.0 * kLanes * kChains * iterations;
}

float read(const float* data, int64_t count) {
    F16 acc[4] = {zero(), zero(), zero(), zero()};
    for (int64_t i = 0; i < count; i += 4 * kLanes)
        for (int j = 0; j < 4; j++) acc[j] = max(acc[j], load(data + i + j * kLanes));
    return reduce_max(max(max(acc[0], acc[1]), max(acc[2], acc[3])));
}

}  // namespace

const Ceilings& ceilings() {
#if defined(__AMX_INT8__)
    static const Ceilings table = {int8_products, bfloat_products, float_products, read};
#else
    static const Ceilings table = {int8_products, nullptr, float_products, read};
#endif
    return table;
}

}  // namespace kvist::KVIST_ISA
