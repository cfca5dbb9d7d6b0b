// What both ways of computing attention share: sizes and the place of a tile of keys and values.
#pragma once

#include "kernels.h"
#include "scratch.h"
#include "simd.h"

namespace kvist::KVIST_ISA {

constexpr int kTileKeys = kSharedKeys;
constexpr int kTileVectors = kTileKeys / kLanes;
constexpr int kMaxHeadDim = 256;
constexpr int kMaxQueries = kQueriesPerItem;  // query vectors that share one pass over a tile

}  // namespace kvist::KVIST_ISA
