#include "operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvist {
namespace {

constexpr int kRowsPerItem = 4;  // for operations that take well under a microsecond a row

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// An operation over rows: Fn(kernels, step, row_begin, row_end).
template <class Fn>
class PerRows : public Operation {
   public:
    PerRows(std::string name, Plan& plan, Fn fn) : Operation(std::move(name)), kernels_(plan.kernels), fn_(std::move(fn)) {}
    int prepare(const Step& step) override { return ceil_div(step.num_tokens, kRowsPerItem); }
    void run(const Step& step, int item) const override {
        const int begin = item * kRowsPerItem;
        fn_(kernels_, step, begin, std::min(begin + kRowsPerItem, step.num_tokens));
    }

   private:
    const Kernels& kernels_;
    Fn fn_;
};

template <class Fn>
std::unique_ptr<Operation> per_rows(std::string name, Plan& plan, Fn fn) {
    return std::make_unique<PerRows<Fn>>(std::move(name), plan, std::move(fn));
}

// Tiles are handed out a few at a time (so that an item streams tens of kilobytes of weights), rows in runs that keep their
// activations in the first-level cache while a tile's weights pass.
class Linear : public Operation {
   public:
    static constexpr int kTilesPerItem = 4;
    static constexpr int kRowRun = 64;

    Linear(Plan& plan, std::vector<LinearPart> parts, int quantized, int out, bool accumulate)
        : Operation("linear"), kernels_(plan.kernels), parts_(std::move(parts)) {
        const QuantBuffer q = plan.quantized(quantized);
        for (const auto& part : parts_) {
            const RowBuffer y = plan.buffer(out, part.column);
            args_.push_back({part.w, {q.q, q.scale, q.scaled_sum, q.sum16, q.k}, y.data, y.stride, accumulate});
            for (int tile = 0; tile < ceil_div(part.w.n, kTile); tile += kTilesPerItem)
                pieces_.push_back(
                    {static_cast<int>(args_.size()) - 1, tile, std::min(tile + kTilesPerItem, ceil_div(part.w.n, kTile))});
        }
    }
    int prepare(const Step& step) override { return static_cast<int>(pieces_.size()) * ceil_div(step.num_tokens, kRowRun); }
    void run(const Step& step, int item) const override {
        const int num_pieces = static_cast<int>(pieces_.size());
        const Piece& piece = pieces_[item % num_pieces];
        const int row = item / num_pieces * kRowRun;
        kernels_.linear(args_[piece.part], piece.tile_begin, piece.tile_end, row, std::min(row + kRowRun, step.num_tokens));
    }

   private:
    struct Piece {
        int part, tile_begin, tile_end;
    };
    const Kernels& kernels_;
    std::vector<LinearPart> parts_;
    std::vector<LinearArgs> args_;
    std::vector<Piece> pieces_;
};

class LinearDense : public Operation {
   public:
    static constexpr int kOutputsPerItem = 32;

    LinearDense(Plan& plan, PackedMatrix w, RowBuffer x, RowBuffer y, bool accumulate)
        : Operation("linear_dense"), kernels_(plan.kernels), w_(w), x_(x), y_(y), accumulate_(accumulate) {}
    int prepare(const Step& step) override { return step.num_tokens ? ceil_div(w_.n, kOutputsPerItem) : 0; }
    void run(const Step& step, int item) const override {
        const int begin = item * kOutputsPerItem;
        kernels_.linear_dense(w_, x_, y_, accumulate_, begin, std::min(begin + kOutputsPerItem, w_.n), step.num_tokens);
    }

   private:
    const Kernels& kernels_;
    PackedMatrix w_;
    RowBuffer x_, y_;
    bool accumulate_;
};

int row_of_token(const Step& step, int token) {
    int low = 0, high = step.num_rows - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (step.rows[middle].first_row <= token) low = middle;
        else high = middle - 1;
    }
    return low;
}

KVLayout layout_of(const AttentionShape& s, uint8_t* base) {
    return {base, s.block_bytes, s.k_offset, s.v_offset, s.type, s.block_size, s.num_kv_heads, s.head_dim};
}

// What attention and its merge share: the items of the current step.
struct AttentionWork {
    struct Item {
        int row, kv_head, token_begin, token_end;
        int segment;      // -1: all segments at once
        int64_t partial;  // offset of the partial's floats
    };
    struct Merge {
        int row, kv_head, token_begin, token_end, num_segments;
        int64_t partial, floats;
    };
    std::vector<Item> items;
    std::vector<Merge> merges;
    float* partials = nullptr;
    int64_t capacity = 0;  // floats
};

AttentionArgs attention_args(const AttentionShape& s, const Step& step, RowBuffer q, RowBuffer out) {
    return {
        layout_of(s, step.kv_base), step.rows, q, out, s.num_q_heads / s.num_kv_heads, s.window, s.scale, s.softcap, nullptr};
}

class Attention : public Operation {
   public:
    Attention(Plan& plan, const AttentionShape& shape, RowBuffer q, RowBuffer out, int num_threads,
              std::shared_ptr<AttentionWork> work)
        : Operation("attention"), kernels_(plan.kernels), shape_(shape), q_(q), out_(out), num_threads_(num_threads),
          work_(std::move(work)) {}

    int prepare(const Step& step) override {
        work_->items.clear();
        work_->merges.clear();
        int num_tiles = 0;
        for (int r = 0; r < step.num_rows; r++) num_tiles += ceil_div(step.rows[r].num_tokens, kQueryTokens);
        const bool split = num_tiles * shape_.num_kv_heads < 8 * num_threads_;
        int64_t used = 0;
        for (int r = 0; r < step.num_rows; r++)
            for (int begin = 0; begin < step.rows[r].num_tokens; begin += kQueryTokens)
                for (int head = 0; head < shape_.num_kv_heads; head++) add(step, r, head, begin, split, &used);
        return static_cast<int>(work_->items.size());
    }
    void run(const Step& step, int index) const override {
        const auto& item = work_->items[index];
        const AttentionArgs args = attention_args(shape_, step, q_, out_);
        if (item.segment < 0) kernels_.attention(args, item.row, item.kv_head, item.token_begin, item.token_end);
        else
            kernels_.attention_segment(args, item.row, item.kv_head, item.token_begin, item.token_end, item.segment,
                                       work_->partials + item.partial);
    }

   private:
    void add(const Step& step, int r, int head, int begin, bool split, int64_t* used) {
        const StepRow& row = step.rows[r];
        const int end = std::min(begin + kQueryTokens, row.num_tokens);
        const int oldest = shape_.window > 0 ? std::max(0, row.start + begin - shape_.window + 1) : 0;
        const int first = oldest / kSegment, last = (row.start + end - 1) / kSegment;
        const int64_t floats = partial_floats((end - begin) * (shape_.num_q_heads / shape_.num_kv_heads), shape_.head_dim);
        const int num_segments = last - first + 1;
        if (!split || num_segments == 1 || *used + floats * num_segments > work_->capacity) {
            work_->items.push_back({r, head, begin, end, -1, 0});
            return;
        }
        work_->merges.push_back({r, head, begin, end, num_segments, *used, floats});
        for (int s = first; s <= last; s++) {
            work_->items.push_back({r, head, begin, end, s, *used});
            *used += floats;
        }
    }

    const Kernels& kernels_;
    AttentionShape shape_;
    RowBuffer q_, out_;
    int num_threads_;
    std::shared_ptr<AttentionWork> work_;
};

class AttentionMerge : public Operation {
   public:
    AttentionMerge(Plan& plan, const AttentionShape& shape, RowBuffer q, RowBuffer out, std::shared_ptr<AttentionWork> work)
        : Operation("attention_merge"), kernels_(plan.kernels), shape_(shape), q_(q), out_(out), work_(std::move(work)) {}
    int prepare(const Step&) override { return static_cast<int>(work_->merges.size()); }
    void run(const Step& step, int index) const override {
        const auto& m = work_->merges[index];
        kernels_.attention_merge(attention_args(shape_, step, q_, out_), m.row, m.kv_head, m.token_begin, m.token_end,
                                 work_->partials + m.partial, m.floats, m.num_segments);
    }

   private:
    const Kernels& kernels_;
    AttentionShape shape_;
    RowBuffer q_, out_;
    std::shared_ptr<AttentionWork> work_;
};

// The best of each piece of a row, so that one row's logits are shared among threads.
class BestLogits : public Operation {
   public:
    static constexpr int kPiece = 8192;

    BestLogits(Plan& plan, RowBuffer logits, int n, float cap, std::shared_ptr<std::vector<BestLogit>> best)
        : Operation("best_logits"), kernels_(plan.kernels), logits_(logits), n_(n), cap_(cap), best_(std::move(best)) {}
    int prepare(const Step& step) override { return step.num_tokens * ceil_div(n_, kPiece); }
    void run(const Step&, int item) const override {
        const int num_pieces = ceil_div(n_, kPiece);
        const int begin = item % num_pieces * kPiece, size = std::min(kPiece, n_ - begin);
        float* logits = logits_.data + item / num_pieces * logits_.stride + begin;
        if (cap_ > 0) kernels_.softcap(logits, size, cap_);
        const BestLogit best = kernels_.best_logit(logits, size);
        (*best_)[item] = {best.logit, best.id < 0 ? -1 : begin + best.id};
    }

   private:
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
    const QuantBuffer q = plan.quantized(quantized);
    return per_rows("rms_norm_quantize", plan,
                    [=](const Kernels& k, const Step&, int begin, int end) { k.rms_norm_quantize(x, w, eps, q, begin, end); });
}

std::unique_ptr<Operation> make_quantize(Plan& plan, RowBuffer x, int quantized) {
    const QuantBuffer q = plan.quantized(quantized);
    return per_rows("quantize", plan, [=](const Kernels& k, const Step&, int begin, int end) { k.quantize(x, q, begin, end); });
}

std::unique_ptr<Operation> make_linear(Plan& plan, std::vector<LinearPart> parts, int quantized, int out, bool accumulate) {
    return std::make_unique<Linear>(plan, std::move(parts), quantized, out, accumulate);
}

std::unique_ptr<Operation> make_linear_dense(Plan& plan, PackedMatrix w, RowBuffer x, RowBuffer y, bool accumulate) {
    return std::make_unique<LinearDense>(plan, w, x, y, accumulate);
}

std::unique_ptr<Operation> make_gated_quantize(Plan& plan, RowBuffer gate, RowBuffer up, Activation kind, int quantized) {
    const QuantBuffer q = plan.quantized(quantized);
    return per_rows("gated_quantize", plan, [=](const Kernels& k, const Step&, int begin, int end) {
        k.gated_quantize(gate, up, kind, q, begin, end);
    });
}

std::unique_ptr<Operation> make_gated(Plan& plan, RowBuffer gate, RowBuffer up, Activation kind, int width, RowBuffer y) {
    return per_rows("gated", plan,
                    [=](const Kernels& k, const Step&, int begin, int end) { k.gated(gate, up, kind, width, y, begin, end); });
}

std::unique_ptr<Operation> make_add(Plan& plan, RowBuffer x, RowBuffer y, int width) {
    return per_rows("add", plan, [=](const Kernels& k, const Step&, int begin, int end) { k.add(x, y, width, begin, end); });
}

std::unique_ptr<Operation> make_rope_write(Plan& plan, const AttentionShape& shape, RowBuffer q, RowBuffer k, RowBuffer v) {
    return per_rows("rope_write", plan, [=](const Kernels& kernels, const Step& step, int begin, int end) {
        const RopeArgs rope = {shape.cos_sin, shape.head_dim};
        kernels.rope(q, rope, shape.num_q_heads, begin, end);
        kernels.rope(k, rope, shape.num_kv_heads, begin, end);
        const KVLayout kv = layout_of(shape, step.kv_base);
        for (int token = begin; token < end;) {
            const StepRow& row = step.rows[row_of_token(step, token)];
            const int stop = std::min(end, row.first_row + row.num_tokens);
            kernels.write_kv(kv, row, k, v, token - row.first_row, stop - row.first_row);
            token = stop;
        }
    });
}

void append_attention(Plan& plan, const AttentionShape& shape, RowBuffer q, RowBuffer out) {
    const int num_threads = plan.num_threads();
    auto work = std::make_shared<AttentionWork>();
    const int max_items = (plan.max_tokens / kQueryTokens + plan.max_rows) * shape.num_kv_heads;
    work->items.reserve(max_items + 4096);
    work->merges.reserve(8 * num_threads + 8);
    work->capacity = 1 << 20;
    work->partials = plan.shared_floats(work->capacity);
    plan.append(std::make_unique<Attention>(plan, shape, q, out, num_threads, work));
    plan.append(std::make_unique<AttentionMerge>(plan, shape, q, out, work));
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
            std::memcpy(y.data + i * y.stride, x.data + step.logit_rows[i] * x.stride, width * sizeof(float));
    });
}

}  // namespace kvist
