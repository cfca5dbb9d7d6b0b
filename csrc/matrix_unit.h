// The matrix unit (AMX): eight tiles of up to 16 rows of 64 bytes, and products of bfloat16 numbers added up in float32. Where
// the compiler may not use its instructions, plain C++ gives the same bits: a kernel that is written in these functions has a
// twin for any processor in its own source.
//
//   {
//       MatrixUnit unit(shapes);                          // of the tiles that are used
//       tile_zero<0>();
//       tile_load<4>(x, stride), tile_load<6>(w, 64);     // x: [rows][32 k], w: [16 k pairs][16 columns][2]
//       tile_dot_bfloat<0, 4, 6>();
//       tile_store<0>(y, stride);                         // y: [rows][16 columns] of float32
//   }
//
// A dot product adds to each float of C: along the pairs of k, two chains of fused multiply-adds that start at 0, one of the
// even and one of the odd k; then C + (even + odd). It rounds to nearest; numbers below the normal ones count as 0, as factors, in
// C and as results (Intel, Software Developer's Manual, TDPBF16PS; the kernel tests compare).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#endif

namespace kvist::KVIST_ISA {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row
constexpr int kNumTiles = 8;

// Rows and bytes of a row of each tile; 0 for a tile that is not used.
struct TileShapes {
    uint8_t rows[kNumTiles];
    uint16_t row_bytes[kNumTiles];
};

#if defined(__AMX_BF16__)

// Holds the unit while it is in scope; tiles begin as zeros.
class MatrixUnit {
   public:
    explicit MatrixUnit(const TileShapes& shapes) { reshape(shapes); }
    // Other shapes; all tiles are zeros again.
    void reshape(const TileShapes& shapes) {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int i = 0; i < kNumTiles; i++) {
            config.rows[i] = shapes.rows[i];
            config.row_bytes[i] = shapes.row_bytes[i];
        }
        asm volatile("ldtilecfg %0" : : "m"(config));
    }
    ~MatrixUnit() { asm volatile("tilerelease"); }
    MatrixUnit(const MatrixUnit&) = delete;
    MatrixUnit& operator=(const MatrixUnit&) = delete;
};

// The compiler does not know what memory a tile is loaded from or stored to: it must have written all before, and read
// nothing again from before.
template <int kTo>
inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTo));
}
template <int kTo>
inline void tile_load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTo) : "memory");
}
// For what is not needed again soon: leaves the first-level cache to others.
template <int kTo>
inline void tile_load_once(const void* from, int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTo) : "memory");
}
template <int kFrom>
inline void tile_store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kFrom) : "memory");
}
template <int kC, int kA, int kB>
inline void tile_dot_bfloat() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

#else

struct EmulatedTiles {
    TileShapes shapes;
    alignas(64) uint8_t bytes[kNumTiles][kTileRows][kTileBytes];
};
inline thread_local EmulatedTiles emulated_tiles;

class MatrixUnit {
   public:
    explicit MatrixUnit(const TileShapes& shapes) { reshape(shapes); }
    void reshape(const TileShapes& shapes) { emulated_tiles = {shapes, {}}; }
    ~MatrixUnit() { emulated_tiles.shapes = {}; }
    MatrixUnit(const MatrixUnit&) = delete;
    MatrixUnit& operator=(const MatrixUnit&) = delete;
};

template <int kTo>
inline void tile_zero() {
    std::memset(emulated_tiles.bytes[kTo], 0, sizeof emulated_tiles.bytes[kTo]);
}
template <int kTo>
inline void tile_load(const void* from, int64_t stride) {
    tile_zero<kTo>();
    for (int row = 0; row < emulated_tiles.shapes.rows[kTo]; row++)
        std::memcpy(emulated_tiles.bytes[kTo][row], static_cast<const uint8_t*>(from) + row * stride,
                    emulated_tiles.shapes.row_bytes[kTo]);
}
template <int kTo>
inline void tile_load_once(const void* from, int64_t stride) {
    tile_load<kTo>(from, stride);
}
template <int kFrom>
inline void tile_store(void* to, int64_t stride) {
    for (int row = 0; row < emulated_tiles.shapes.rows[kFrom]; row++)
        std::memcpy(static_cast<uint8_t*>(to) + row * stride, emulated_tiles.bytes[kFrom][row],
                    emulated_tiles.shapes.row_bytes[kFrom]);
}

inline float normal_or_zero(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// The numbers of a tile row as floats; bfloat16 is the upper half of one.
inline void widen_tile_row(const uint8_t* row, float (&to)[2 * kTileRows]) {
    for (int i = 0; i < 2 * kTileRows; i++) {
        uint16_t half;
        std::memcpy(&half, row + 2 * i, 2);
        const uint32_t bits = static_cast<uint32_t>(half) << 16;
        std::memcpy(&to[i], &bits, 4);
        to[i] = normal_or_zero(to[i]);
    }
}

template <int kC, int kA, int kB>
inline void tile_dot_bfloat() {
    EmulatedTiles& t = emulated_tiles;
    const int columns = t.shapes.row_bytes[kC] / 4, pairs = t.shapes.row_bytes[kA] / 4;
    float b[kTileRows][2 * kTileRows], a[2 * kTileRows], sums[2 * kTileRows], c[kTileRows];
    for (int k = 0; k < pairs; k++) widen_tile_row(t.bytes[kB][k], b[k]);
    for (int row = 0; row < t.shapes.rows[kC]; row++) {
        widen_tile_row(t.bytes[kA][row], a);
        std::memset(sums, 0, sizeof sums);
        for (int k = 0; k < pairs; k++)
            for (int i = 0; i < 2 * columns; i++) sums[i] = normal_or_zero(std::fmaf(a[2 * k + i % 2], b[k][i], sums[i]));
        std::memcpy(c, t.bytes[kC][row], sizeof c);
        for (int i = 0; i < columns; i++)
            c[i] = normal_or_zero(normal_or_zero(c[i]) + normal_or_zero(sums[2 * i] + sums[2 * i + 1]));
        std::memcpy(t.bytes[kC][row], c, sizeof c);
    }
}

#endif

}  // namespace kvist::KVIST_ISA
