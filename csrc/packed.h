// Weight layouts made for the kernels. Packing is lossless: the integers and scales of the GGUF file in another order.
// A matrix [N, K] is cut into tiles of 16 outputs (N padded with zero weights); a tile is a run of blocks along K.
// In a block, byte [step][output][k] (16 x 4 = 64 bytes a step) holds the weight of output `output` at 4 * step + k.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvist {

constexpr int kTile = 16;   // outputs
constexpr int kGroup = 32;  // weights along K that share a scale, and activations that do

enum class Format : int32_t { q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, f32, f16, bf16 };

constexpr bool is_dense(Format format) { return format >= Format::f32; }

// Nibbles: low halves are steps 0..3, high halves are steps 4..7.
struct BlockQ4_0 {  // w = d * (u - 8)
    uint8_t u[256];
    uint16_t d[kTile];
};
struct BlockQ4_1 {  // w = d * u + m
    uint8_t u[256];
    uint16_t d[kTile];
    uint16_t m[kTile];
};
struct BlockQ4_K {  // eight groups: w = d * scale * u - dmin * min
    uint16_t d[kTile];
    uint16_t dmin[kTile];
    uint8_t scale[8][kTile];
    uint8_t min[8][kTile];
    uint8_t u[8][256];
};
// Five bits: nibbles as above, and bit `s` of high byte [output][k] for step s.
struct BlockQ5_0 {  // w = d * (u - 16)
    uint8_t u[256];
    uint8_t high[64];
    uint16_t d[kTile];
};
struct BlockQ5_1 {  // w = d * u + m
    uint8_t u[256];
    uint8_t high[64];
    uint16_t d[kTile];
    uint16_t m[kTile];
};
struct BlockQ5_K {  // as BlockQ4_K
    uint16_t d[kTile];
    uint16_t dmin[kTile];
    uint8_t scale[8][kTile];
    uint8_t min[8][kTile];
    uint8_t u[8][256];
    uint8_t high[8][64];
};
struct BlockQ8_0 {  // w = d * s
    int8_t s[512];
    uint16_t d[kTile];
};
struct BlockQ6_K {  // eight groups of two halves: w = d * scale[half] * (u - 32); u = low 4 bits + 16 * high 2 bits
    uint16_t d[kTile];
    int8_t scale[16][kTile];
    uint8_t low[8][256];
    uint8_t high[8][128];  // byte [step 0..1][output][k] holds the two bits of steps s, s+2, s+4, s+6 from bit 0 up
};

// Rows of activations as quantized linears read them, in one of two forms; the kernels say which.
struct Activations {
    // int8, quantized per row and group: x = scale * q.
    int8_t* q;          // [rows, K]
    float* scale;       // [rows, K / 32]
    float* scaled_sum;  // [rows, K / 32], scale times the group's sum of q
    int32_t* sum16;     // [rows, K / 16] sums of q
    // Or bfloat16.
    uint16_t* bfloat;  // [rows, stride]
    int64_t stride;

    int64_t k;
};

struct PackedMatrix {
    const void* data;
    Format format;
    int32_t n;  // outputs, unpadded
    int32_t k;
    const float* bias;  // [n padded], or null
};

}  // namespace kvist
