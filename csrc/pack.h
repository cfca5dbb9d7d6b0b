// Repacks GGUF rows into the kernels' layouts, losslessly.
#pragma once

#include "packed.h"

namespace kvist {

// Raise it with any change of what `pack` writes: packed weights are kept on disk.
constexpr int kLayoutVersion = 1;

// Bytes of a packed [n, k] matrix (n padded to a tile), or 0 where the format cannot hold this k.
int64_t packed_bytes(Format format, int64_t n, int64_t k);

// Bytes of one row of k weights in a GGUF file.
int64_t source_row_bytes(Format format, int64_t k);

// Packs tiles [tile_begin, tile_end). source_rows[i] is the source row of output i, or null for the identity.
void pack(Format format, const uint8_t* source, int64_t n, int64_t k, const int32_t* source_rows, uint8_t* packed,
          int64_t tile_begin, int64_t tile_end);

}  // namespace kvist
