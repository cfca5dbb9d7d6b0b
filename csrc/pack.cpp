#include "pack.h"

#include <cstring>

namespace kvist {
namespace {

// Where weight (lane, i) of a group of 32 stands: byte in the step, and the step.
inline int byte_of(int lane, int i) { return 4 * lane + i % 4; }
inline int step_of(int i) { return i / 4; }

inline void put_nibble(uint8_t* u, int lane, int i, int value) {
    const int step = step_of(i);
    u[64 * (step % 4) + byte_of(lane, i)] |= static_cast<uint8_t>(value << (step < 4 ? 0 : 4));
}
inline void put_fifth(uint8_t* high, int lane, int i, int bit) {
    high[byte_of(lane, i)] |= static_cast<uint8_t>(bit << step_of(i));
}
inline uint16_t u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}
inline uint32_t u32(const uint8_t* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}
inline int half_nibble(const uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

// The 6-bit scales and minima of a K block: GGUF packs eight pairs in 12 bytes.
inline void k_scales(const uint8_t* s, int j, uint8_t* scale, uint8_t* min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = static_cast<uint8_t>((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

void put(BlockQ4_0& b, int lane, const uint8_t* src) {
    b.d[lane] = u16(src);
    for (int i = 0; i < 32; i++) put_nibble(b.u, lane, i, half_nibble(src + 2, i));
}
void put(BlockQ4_1& b, int lane, const uint8_t* src) {
    b.d[lane] = u16(src);
    b.m[lane] = u16(src + 2);
    for (int i = 0; i < 32; i++) put_nibble(b.u, lane, i, half_nibble(src + 4, i));
}
void put(BlockQ5_0& b, int lane, const uint8_t* src) {
    b.d[lane] = u16(src);
    const uint32_t high = u32(src + 2);
    for (int i = 0; i < 32; i++) {
        put_nibble(b.u, lane, i, half_nibble(src + 6, i));
        put_fifth(b.high, lane, i, high >> i & 1);
    }
}
void put(BlockQ5_1& b, int lane, const uint8_t* src) {
    b.d[lane] = u16(src);
    b.m[lane] = u16(src + 2);
    const uint32_t high = u32(src + 4);
    for (int i = 0; i < 32; i++) {
        put_nibble(b.u, lane, i, half_nibble(src + 8, i));
        put_fifth(b.high, lane, i, high >> i & 1);
    }
}
void put(BlockQ8_0& b, int lane, const uint8_t* src) {
    b.d[lane] = u16(src);
    for (int i = 0; i < 32; i++) b.s[64 * step_of(i) + byte_of(lane, i)] = static_cast<int8_t>(src[2 + i]);
}
void put(BlockQ4_K& b, int lane, const uint8_t* src) {
    b.d[lane] = u16(src);
    b.dmin[lane] = u16(src + 2);
    const uint8_t* qs = src + 16;
    for (int g = 0; g < 8; g++) {
        k_scales(src + 4, g, &b.scale[g][lane], &b.min[g][lane]);
        for (int i = 0; i < 32; i++) put_nibble(b.u[g], lane, i, qs[32 * (g / 2) + i] >> (g % 2 ? 4 : 0) & 15);
    }
}
void put(BlockQ5_K& b, int lane, const uint8_t* src) {
    b.d[lane] = u16(src);
    b.dmin[lane] = u16(src + 2);
    const uint8_t *high = src + 16, *qs = src + 48;
    for (int g = 0; g < 8; g++) {
        k_scales(src + 4, g, &b.scale[g][lane], &b.min[g][lane]);
        for (int i = 0; i < 32; i++) {
            put_nibble(b.u[g], lane, i, qs[32 * (g / 2) + i] >> (g % 2 ? 4 : 0) & 15);
            put_fifth(b.high[g], lane, i, high[i] >> g & 1);
        }
    }
}
void put(BlockQ6_K& b, int lane, const uint8_t* src) {
    const uint8_t *low = src, *high = src + 128, *scales = src + 192;
    b.d[lane] = u16(src + 208);
    for (int j = 0; j < 16; j++) b.scale[j][lane] = static_cast<int8_t>(scales[j]);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) {
            const int half = g / 4, quarter = g % 4;  // weight 128 * half + 32 * quarter + i
            const int nibble = low[64 * half + 32 * (quarter % 2) + i] >> (quarter < 2 ? 0 : 4) & 15;
            const int two = high[32 * half + i] >> (2 * quarter) & 3;
            put_nibble(b.low[g], lane, i, nibble);
            const int step = step_of(i);
            b.high[g][64 * (step % 2) + byte_of(lane, i)] |= static_cast<uint8_t>(two << (2 * (step / 2)));
        }
}

template <class Block, int kWeights, int kSourceBytes>
struct Layout {
    static int64_t packed(int64_t n, int64_t k) {
        return k % kWeights ? 0 : (n + kTile - 1) / kTile * (k / kWeights) * static_cast<int64_t>(sizeof(Block));
    }
    static int64_t row_bytes(int64_t k) { return k / kWeights * kSourceBytes; }
    static void pack(const uint8_t* source, int64_t n, int64_t k, const int32_t* rows, uint8_t* out, int64_t begin,
                     int64_t end) {
        const int64_t blocks = k / kWeights;
        auto* packed = reinterpret_cast<Block*>(out);
        for (int64_t tile = begin; tile < end; tile++) {
            std::memset(static_cast<void*>(packed + tile * blocks), 0, blocks * sizeof(Block));
            for (int lane = 0; lane < kTile && tile * kTile + lane < n; lane++) {
                const int64_t output = tile * kTile + lane;
                const uint8_t* src = source + (rows ? rows[output] : output) * row_bytes(k);
                for (int64_t b = 0; b < blocks; b++) put(packed[tile * blocks + b], lane, src + b * kSourceBytes);
            }
        }
    }
};

// Calls fn(Layout<...>{}) for the format; false for the dense ones, which need no packing.
template <class Fn>
bool with_layout(Format format, Fn fn) {
    switch (format) {
        case Format::q4_0: fn(Layout<BlockQ4_0, 32, 18>{}); return true;
        case Format::q4_1: fn(Layout<BlockQ4_1, 32, 20>{}); return true;
        case Format::q5_0: fn(Layout<BlockQ5_0, 32, 22>{}); return true;
        case Format::q5_1: fn(Layout<BlockQ5_1, 32, 24>{}); return true;
        case Format::q8_0: fn(Layout<BlockQ8_0, 32, 34>{}); return true;
        case Format::q4_k: fn(Layout<BlockQ4_K, 256, 144>{}); return true;
        case Format::q5_k: fn(Layout<BlockQ5_K, 256, 176>{}); return true;
        case Format::q6_k: fn(Layout<BlockQ6_K, 256, 210>{}); return true;
        default: return false;
    }
}

}  // namespace

int64_t packed_bytes(Format format, int64_t n, int64_t k) {
    int64_t bytes = 0;
    with_layout(format, [&](auto layout) { bytes = layout.packed(n, k); });
    return bytes;
}

int64_t source_row_bytes(Format format, int64_t k) {
    int64_t bytes = k * (format == Format::f32 ? 4 : 2);
    with_layout(format, [&](auto layout) { bytes = layout.row_bytes(k); });
    return bytes;
}

void pack(Format format, const uint8_t* source, int64_t n, int64_t k, const int32_t* source_rows, uint8_t* packed,
          int64_t tile_begin, int64_t tile_end) {
    with_layout(format, [&](auto layout) { layout.pack(source, n, k, source_rows, packed, tile_begin, tile_end); });
}

}  // namespace kvist
