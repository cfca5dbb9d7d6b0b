// What follows the sums of a block of the matrix unit: rows of floats, or a gated activation's rows.
#pragma once

#include "activation.h"
#include "matrix_unit.h"
#include "weights_bfloat.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

constexpr int kBlockRows = 2 * kTileRows;
constexpr int kSumsStride = 2 * kTile;

struct BlockSums {
    alignas(64) float rows[kBlockRows][kSumsStride];  // of two tiles of outputs
};

alignas(64) constexpr float kNoBias[kTile] = {};
inline const float* bias_of(const PackedMatrix& w, int tile) { return w.bias ? w.bias + tile * kTile : kNoBias; }
// What sums are multiplied with: weights as they are stored, or rounded, were not cut.
constexpr float after_cut(Format format) { return is_dense(format) ? 1.0f : kAfterCut; }
inline F16 finished(const float* sums, F16 factor, const float* bias) { return add(mul(load(sums), factor), load(bias)); }

// Tiles `tile` and, if there are two, the next, of a linear's outputs.
template <int kTiles>
class FloatRows {
   public:
    FloatRows(const LinearArgs& a, int tile)
        : y_(a.y + tile * kTile), stride_(a.y_stride), accumulate_(a.accumulate), factor_(set1(after_cut(a.w.format))),
          bias_{bias_of(a.w, tile), bias_of(a.w, tile + kTiles - 1)} {}
    void put(const float* sums, int row) const {
        for (int t = 0; t < kTiles; t++) {
            float* y = y_ + row * stride_ + t * kTile;
            const F16 sum = finished(sums + t * kTile, factor_, bias_[t]);
            store(y, accumulate_ ? add(load(y), sum) : sum);
        }
    }

   private:
    float* y_;
    int64_t stride_;
    bool accumulate_;
    F16 factor_;
    const float* bias_[2];
};

// Tile `tile` of activation(gate) * up, from a tile of gate and one of up, of one format. What is not finite shows in all that is computed from
// it, as it does in bfloat16.
template <Activation kKind>
class GatedRows {
   public:
    GatedRows(const GatedArgs& a, int tile)
        : y_(a.y.bfloat + tile * kTile), stride_(a.y.stride), factor_(set1(after_cut(a.gate.format))),
          gate_bias_(bias_of(a.gate, tile)), up_bias_(bias_of(a.up, tile)) {}
    void put(const float* sums, int row) const {
        const F16 gate = finished(sums, factor_, gate_bias_), up = finished(sums + kTile, factor_, up_bias_);
        store_bfloat(y_ + row * stride_, mul(activate_to_quantize(gate, kKind), up));
    }

   private:
    uint16_t* y_;
    int64_t stride_;
    F16 factor_;
    const float *gate_bias_, *up_bias_;
};

// A block whose sums stand, row by row on the way to where they go. Work on a copy that nobody has the address of: the compiler
// must think that tiles write to anything else.
template <class Sink>
class Unfinished {
   public:
    explicit Unfinished(const Sink& sink) : sink_(sink) {}
    Unfinished(const Sink& sink, const BlockSums& sums, int first_row, int num_rows)
        : sink_(sink), sums_(sums.rows[0]), row_(first_row), row_end_(first_row + num_rows) {}

    int rows_per_step(int num_steps) const { return (row_end_ - row_ + num_steps - 1) / num_steps; }
    [[gnu::always_inline]] void finish(int max_rows) {
        for (const int stop = std::min(row_end_, row_ + max_rows); row_ < stop; row_++, sums_ += kSumsStride)
            sink_.put(sums_, row_);
    }

   private:
    Sink sink_;
    const float* sums_ = nullptr;
    int row_ = 0, row_end_ = 0;
};

}  // namespace
}  // namespace kvist::KVIST_ISA
