#include "operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvist {
namespace {

constexpr int kRowsPerItem = 4;  // for operations that take well under a microsecond a row

int ceil_div(int a, int b) { return (a + b - 1) / b; }

LinearArgs linear_args(PackedMatrix w, Activations x, RowBuffer y, bool accumulate) {
    return {w, x, y.data, y.stride, accumulate};
}

// An operation over rows: Fn(kernels, step, row_begin, row_end).
template <class Fn>
class PerRows : public Operation {
   public:
    PerRows(std::string name, Plan& plan, Fn fn) : Operation(std::move(name)), kernels_(plan.kernels), fn_(std::move(fn)) {}
    int prepare(const Step& step) override { return ceil_div(step.num_tokens, kRowsPerItem); }
    void run(const Step& step, int begin, int end) const override {
        fn_(kernels_, step, begin * kRowsPerItem, std::min(end * kRowsPerItem, step.num_tokens));
    }

   private:
    const Kernels& kernels_;
    Fn fn_;
};

template <class Fn>
std::unique_ptr<Operation> per_rows(std::string name, Plan& plan, Fn fn) {
    return std::make_unique<PerRows<Fn>>(std::move(name), plan, std::move(fn));
}

constexpr int kRowRun = 128;     // rows that share what a kernel prepares for a tile; they stay in the second-level cache
constexpr int kMaxRowRun = 256;  // the matrix unit is done sooner with them, so more must pay for widening
constexpr int kManyRows = 16;    // from here on a tile is expanded once for all rows: several tiles make an item

// Rows in each of as few runs as there can be, all but the last of one size: a thread's share of the items is much the same rows
// in each operation.
int rows_per_run(const Kernels& kernels, int num_rows) {
    constexpr int kBlock = 32;  // rows that the matrix unit multiplies at a time
    const int num_runs = ceil_div(num_rows, kernels.has_bfloat_activations ? kMaxRowRun : kRowRun);
    return num_runs ? ceil_div(ceil_div(num_rows, num_runs), kBlock) * kBlock : kBlock;
}

// Items are tiles in order, so that a run of items streams a run of weights; many rows come in runs.
class Linear : public Operation {
   public:
    static constexpr int kTilesPerItem = 2;  // where there are many rows; always for the matrix unit, which takes them in pairs

    Linear(Plan& plan, const std::vector<LinearPart>& parts, int quantized, int out, bool accumulate)
        : Operation("linear"), kernels_(plan.kernels) {
        const Activations q = plan.quantized(quantized);
        for (const auto& part : parts) {
            const RowBuffer y = plan.buffer(out, part.column);
            parts_.push_back({linear_args(part.w, q, y, accumulate), num_tiles_});
            num_tiles_ += ceil_div(part.w.n, kTile);
        }
    }
    int prepare(const Step& step) override {
        tiles_per_item_ = step.num_tokens < kManyRows && !kernels_.has_bfloat_activations ? 1 : kTilesPerItem;
        row_run_ = rows_per_run(kernels_, step.num_tokens);
        return ceil_div(num_tiles_, tiles_per_item_) * ceil_div(step.num_tokens, row_run_);
    }
    void run(const Step& step, int begin, int end) const override {
        const int items_per_run = ceil_div(num_tiles_, tiles_per_item_);
        while (begin < end) {
            const int first_item = begin / items_per_run * items_per_run, stop = std::min(end, first_item + items_per_run);
            const int row = begin / items_per_run * row_run_;
            run_tiles((begin - first_item) * tiles_per_item_, std::min((stop - first_item) * tiles_per_item_, num_tiles_), row,
                      std::min(row + row_run_, step.num_tokens));
            begin = stop;
        }
    }

   private:
    struct Part {
        LinearArgs args;
        int first_tile;
    };
    void run_tiles(int begin, int end, int row, int row_end) const {
        for (std::size_t i = 0; i < parts_.size(); i++) {
            const int first = parts_[i].first_tile, last = i + 1 < parts_.size() ? parts_[i + 1].first_tile : num_tiles_;
            const int from = std::max(begin, first), to = std::min(end, last);
            if (from < to) kernels_.linear(parts_[i].args, from - first, to - first, row, row_end);
        }
    }

    const Kernels& kernels_;
    std::vector<Part> parts_;
    int num_tiles_ = 0, row_run_ = 0;
    int tiles_per_item_ = 1;
};

// Two linears of one input, and what follows them: y = quantized(activation(gate) * up). An item is groups of outputs, which
// need nothing of the others: a row with a number that is not finite has a group whose scale is NaN.
class GatedLinear : public Operation {
   public:
    static constexpr int kGroupsPerItem = 2;  // where there are many rows; always for the matrix unit, which each call sets up

    GatedLinear(Plan& plan, PackedMatrix gate, PackedMatrix up, int quantized, Activation kind, int out)
        : Operation("gated_linear"), kernels_(plan.kernels),
          args_{gate, up, plan.quantized(quantized), kind, plan.quantized(out)} {}
    int prepare(const Step& step) override {
        groups_per_item_ = step.num_tokens < kManyRows && !kernels_.has_bfloat_activations ? 1 : kGroupsPerItem;
        row_run_ = rows_per_run(kernels_, step.num_tokens);
        return items_per_run() * ceil_div(step.num_tokens, row_run_);
    }
    void run(const Step& step, int begin, int end) const override {
        for (int stop; begin < end; begin = stop) {
            const int first = begin / items_per_run() * items_per_run(), row = begin / items_per_run() * row_run_;
            stop = std::min(end, first + items_per_run());
            kernels_.gated_linear(args_, (begin - first) * groups_per_item_,
                                  std::min((stop - first) * groups_per_item_, num_groups()), row,
                                  std::min(row + row_run_, step.num_tokens));
        }
    }

   private:
    int num_groups() const { return args_.gate.n / kGroup; }
    int items_per_run() const { return ceil_div(num_groups(), groups_per_item_); }

    const Kernels& kernels_;
    const GatedArgs args_;
    int row_run_ = 0;
    int groups_per_item_ = 1;
};

class LinearDense : public Operation {
   public:
    static constexpr int kOutputsPerItem = 32;

    LinearDense(Plan& plan, PackedMatrix w, RowBuffer x, RowBuffer y, bool accumulate)
        : Operation("linear_dense"), kernels_(plan.kernels), w_(w), x_(x), y_(y), accumulate_(accumulate) {}
    int prepare(const Step& step) override { return step.num_tokens ? ceil_div(w_.n, kOutputsPerItem) : 0; }
    void run(const Step& step, int begin, int end) const override {
        kernels_.linear_dense(w_, x_, y_, accumulate_, begin * kOutputsPerItem, std::min(end * kOutputsPerItem, w_.n),
                              step.num_tokens);
    }

   private:
    const Kernels& kernels_;
    PackedMatrix w_;
    RowBuffer x_, y_;
    bool accumulate_;
};

// The best of each piece of a row, so that one row's logits are shared among threads.
class BestLogits : public Operation {
   public:
    static constexpr int kPiece = 8192;

    BestLogits(Plan& plan, RowBuffer logits, int n, float cap, std::shared_ptr<std::vector<BestLogit>> best)
        : Operation("best_logits"), kernels_(plan.kernels), logits_(logits), n_(n), cap_(cap), best_(std::move(best)) {}
    int prepare(const Step& step) override { return step.num_tokens * ceil_div(n_, kPiece); }
    void run(const Step&, int begin, int end) const override {
        for (int item = begin; item < end; item++) run_piece(item);
    }

   private:
    void run_piece(int item) const {
        const int num_pieces = ceil_div(n_, kPiece);
        const int begin = item % num_pieces * kPiece, size = std::min(kPiece, n_ - begin);
        float* logits = logits_.data + item / num_pieces * logits_.stride + begin;
        if (cap_ > 0) kernels_.softcap(logits, size, cap_);
        const BestLogit best = kernels_.best_logit(logits, size);
        (*best_)[item] = {best.logit, best.id < 0 ? -1 : begin + best.id};
    }

    const Kernels& kernels_;
    RowBuffer logits_;
    int n_;
    float cap_;
    std::shared_ptr<std::vector<BestLogit>> best_;
};

}  // namespace

std::unique_ptr<Operation> make_embed(Plan& plan, PackedMatrix table, float scale, int out) {
    const RowBuffer x = plan.buffer(out);
    return per_rows("embed", plan, [=](const Kernels& k, const Step& step, int begin, int end) {
        k.embed(table, step.token_ids, scale, x, begin, end);
    });
}

std::unique_ptr<Operation> make_rope_angles(Plan& plan, std::vector<double> inverse_frequency, float* cos_sin) {
    return per_rows("rope_angles", plan, [=](const Kernels&, const Step& step, int begin, int end) {
        const std::size_t half = inverse_frequency.size();
        for (int row = begin; row < end; row++)
            for (std::size_t i = 0; i < half; i++) {
                const float angle = static_cast<float>(step.positions[row]) * static_cast<float>(inverse_frequency[i]);
                cos_sin[2 * half * row + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
                cos_sin[2 * half * row + half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
            }
    });
}

std::unique_ptr<Operation> make_norm(Plan& plan, RowBuffer x, const float* w, float eps, int width, int heads, RowBuffer y) {
    return per_rows("rms_norm", plan, [=](const Kernels& k, const Step&, int begin, int end) {
        k.rms_norm(x, w, eps, width, heads, y, begin, end);
    });
}

std::unique_ptr<Operation> make_norm_quantize(Plan& plan, RowBuffer x, const float* w, float eps, int quantized) {
    const Activations q = plan.quantized(quantized);
    return per_rows("rms_norm_quantize", plan,
                    [=](const Kernels& k, const Step&, int begin, int end) { k.rms_norm_quantize(x, w, eps, q, begin, end); });
}

std::unique_ptr<Operation> make_quantize(Plan& plan, RowBuffer x, int quantized) {
    const Activations q = plan.quantized(quantized);
    return per_rows("quantize", plan, [=](const Kernels& k, const Step&, int begin, int end) { k.quantize(x, q, begin, end); });
}

std::unique_ptr<Operation> make_linear(Plan& plan, std::vector<LinearPart> parts, int quantized, int out, bool accumulate) {
    return std::make_unique<Linear>(plan, parts, quantized, out, accumulate);
}

std::unique_ptr<Operation> make_linear_dense(Plan& plan, PackedMatrix w, RowBuffer x, RowBuffer y, bool accumulate) {
    return std::make_unique<LinearDense>(plan, w, x, y, accumulate);
}

std::unique_ptr<Operation> make_gated_quantize(Plan& plan, RowBuffer gate, RowBuffer up, Activation kind, int quantized) {
    const Activations q = plan.quantized(quantized);
    return per_rows("gated_quantize", plan, [=](const Kernels& k, const Step&, int begin, int end) {
        k.gated_quantize(gate, up, kind, q, begin, end);
    });
}

std::unique_ptr<Operation> make_gated_linear(Plan& plan, PackedMatrix gate, PackedMatrix up, int quantized, Activation kind,
                                             int out) {
    return std::make_unique<GatedLinear>(plan, gate, up, quantized, kind, out);
}

std::unique_ptr<Operation> make_gated(Plan& plan, RowBuffer gate, RowBuffer up, Activation kind, bool to_quantize, int width,
                                      RowBuffer y) {
    return per_rows("gated", plan, [=](const Kernels& k, const Step&, int begin, int end) {
        k.gated(gate, up, kind, to_quantize, width, y, begin, end);
    });
}

std::unique_ptr<Operation> make_add(Plan& plan, RowBuffer x, RowBuffer y, int width) {
    return per_rows("add", plan, [=](const Kernels& k, const Step&, int begin, int end) { k.add(x, y, width, begin, end); });
}

std::unique_ptr<Operation> make_check_finite(Plan& plan, RowBuffer x, int width, uint8_t* finite) {
    return per_rows("check_finite", plan, [=](const Kernels& k, const Step&, int begin, int end) {
        for (int row = begin; row < end; row++) finite[row] = k.is_finite(x.data + row * x.stride, width);
    });
}

void append_best_logits(Plan& plan, RowBuffer logits, int n, float cap, int32_t* best) {
    const int num_pieces = ceil_div(n, BestLogits::kPiece);
    auto pieces = std::make_shared<std::vector<BestLogit>>(static_cast<std::size_t>(plan.max_tokens) * num_pieces);
    plan.append(std::make_unique<BestLogits>(plan, logits, n, cap, pieces));
    plan.append(per_rows("best_logit", plan, [=](const Kernels&, const Step&, int begin, int end) {
        for (int row = begin; row < end; row++) {
            const BestLogit* of_row = pieces->data() + static_cast<std::size_t>(row) * num_pieces;
            BestLogit top = of_row[0];
            for (int i = 1; i < num_pieces && top.id >= 0; i++)
                if (of_row[i].id < 0 || of_row[i].logit > top.logit) top = of_row[i];
            best[row] = top.id;
        }
    }));
}

std::unique_ptr<Operation> make_gather(Plan& plan, RowBuffer x, int width, RowBuffer y) {
    return per_rows("gather", plan, [=](const Kernels&, const Step& step, int begin, int end) {
        for (int i = begin; i < end; i++)
            std::memcpy(y.data + i * y.stride, x.data + step.source_rows[i] * x.stride, width * sizeof(float));
    });
}

}  // namespace kvist
