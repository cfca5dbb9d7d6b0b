// Attention of a step as four operations: rotating and writing K and V, what several requests share, each request, and the merge
// of contexts that are split among threads.
#include "attention_layout.h"
#include "operations.h"

#include <algorithm>
#include <cstring>

namespace kvist {
namespace {

// Rotates q and k of tokens and writes k and v to their blocks, for KV heads [head, head_end).
void rope_and_write(const Kernels& kernels, const AttentionShape& s, const AttentionRows& r, const Step& step,
                    const TokenRange& tokens, int head, int head_end) {
    const StepRow& row = step.rows[tokens.row];
    const int begin = row.first_row + tokens.begin, end = row.first_row + tokens.end;
    const RopeArgs rope = {s.cos_sin, s.head_dim};
    const int group = s.num_q_heads / s.num_kv_heads;
    const auto from = [&](RowBuffer x, int first) { return RowBuffer{x.data + int64_t{first} * s.head_dim, x.stride}; };
    kernels.rope(from(r.q, head * group), rope, (head_end - head) * group, begin, end);
    kernels.rope(from(r.k, head), rope, head_end - head, begin, end);
    kernels.write_kv(s.layout(step.kv_base), row, r.k, r.v, head, head_end, tokens.begin, tokens.end);
}

class AttentionOperation : public Operation {
   public:
    AttentionOperation(const char* name, Plan& plan, const AttentionShape& shape, const AttentionRows& rows,
                       std::shared_ptr<AttentionLayout> layout)
        : Operation(name), kernels_(plan.kernels), shape_(shape), rows_(rows), layout_(std::move(layout)) {}

   protected:
    AttentionArgs args(const Step& step) const {
        return {shape_.layout(step.kv_base),
                step.rows,
                rows_.q,
                rows_.out,
                group(),
                shape_.window,
                shape_.scale,
                shape_.softcap,
                shape_.is_integer};
    }
    SharedPrefix prefix_of(const AttentionLayout::Item& item) const {
        return {layout_->states + item.prefix, item.prefix_segment_floats, item.num_prefix_keys};
    }
    int group() const { return shape_.num_q_heads / shape_.num_kv_heads; }
    // What attended of a KV head's queries goes on as, where a linear follows.
    void quantize(const Step& step, int kv_head, const TokenRange& tokens) const {
        if (!rows_.quantized.k) return;
        const int first_row = step.rows[tokens.row].first_row, width = group() * shape_.head_dim;
        kernels_.quantize_groups(rows_.out, rows_.quantized, kv_head * width / kGroup, (kv_head + 1) * width / kGroup,
                                 first_row + tokens.begin, first_row + tokens.end);
    }

    const Kernels& kernels_;
    const AttentionShape shape_;
    const AttentionRows rows_;
    const std::shared_ptr<AttentionLayout> layout_;
};

// Does what must be done before any attention: rotating and writing rows of several items, or all. The first layer of a window
// also lays the step out, for all of them.
class RopeWrite : public AttentionOperation {
   public:
    RopeWrite(Plan& plan, const AttentionShape& shape, const AttentionRows& rows, std::shared_ptr<AttentionLayout> layout,
              bool is_first, bool writes_all)
        : AttentionOperation("rope_write", plan, shape, rows, std::move(layout)), is_first_(is_first), writes_all_(writes_all) {
    }
    int prepare(const Step& step) override {
        if (is_first_) layout_->prepare(step);
        return static_cast<int>(layout_->written.size() + (writes_all_ ? layout_->items.size() : 0));
    }
    void run(const Step& step, int begin, int end) const override {
        const int num_written = static_cast<int>(layout_->written.size());
        for (int i = begin; i < std::min(end, num_written); i++)
            rope_and_write(kernels_, shape_, rows_, step, layout_->written[i], 0, shape_.num_kv_heads);
        for (int i = std::max(begin, num_written); i < end; i++)
            if (const auto& item = layout_->items[i - num_written]; item.writes)
                rope_and_write(kernels_, shape_, rows_, step, item.tokens, item.kv_head, item.kv_head + 1);
    }

   private:
    const bool is_first_, writes_all_;
};

// Moves the rows that are kept to the front, and lays their attention out. One item, for a row goes where others have been.
class Narrow : public AttentionOperation {
   public:
    Narrow(Plan& plan, const AttentionShape& shape, const AttentionRows& rows, std::shared_ptr<AttentionLayout> layout,
           RowBuffer x, int width)
        : AttentionOperation("narrow", plan, shape, rows, std::move(layout)), x_(x), width_(width) {}
    int prepare(const Step& step) override {
        layout_->prepare(step);
        return step.num_tokens > 0 && step.source_rows[step.num_tokens - 1] >= step.num_tokens;
    }
    void run(const Step& step, int, int) const override {
        for (int i = 0; i < step.num_tokens; i++) {
            if (step.source_rows[i] == i) continue;
            move(x_, width_, step.source_rows[i], i);
            move(rows_.q, shape_.num_q_heads * shape_.head_dim, step.source_rows[i], i);
        }
    }

   private:
    static void move(RowBuffer x, int width, int64_t from, int64_t to) {
        std::memcpy(x.data + to * x.stride, x.data + from * x.stride, width * sizeof(float));
    }

    const RowBuffer x_;
    const int width_;
};

class SharedAttention : public AttentionOperation {
   public:
    using AttentionOperation::AttentionOperation;
    int prepare(const Step&) override { return static_cast<int>(layout_->shared.size()); }
    void run(const Step& step, int begin, int end) const override {
        for (int i = begin; i < end; i++) {
            const auto& item = layout_->shared[i];
            kernels_.attention_segment(args(step), item.kv_head, layout_->ranges.data() + item.first_range, item.num_ranges,
                                       item.segment, item.num_keys, {nullptr, 0, 0}, layout_->states + item.states);
        }
    }
};

class Attention : public AttentionOperation {
   public:
    using AttentionOperation::AttentionOperation;
    int prepare(const Step&) override { return static_cast<int>(layout_->items.size()); }
    void run(const Step& step, int begin, int end) const override {
        for (int i = begin; i < end; i++) run_item(step, layout_->items[i]);
    }

   private:
    void run_item(const Step& step, const AttentionLayout::Item& item) const {
        if (item.segment >= 0) {
            kernels_.attention_segment(args(step), item.kv_head, &item.tokens, 1, item.segment, (item.segment + 1) * kSegment,
                                       prefix_of(item), layout_->states + item.states);
            return;
        }
        if (item.writes) rope_and_write(kernels_, shape_, rows_, step, item.tokens, item.kv_head, item.kv_head + 1);
        kernels_.attention(args(step), item.kv_head, item.tokens, prefix_of(item));
        quantize(step, item.kv_head, item.tokens);
    }
};

class AttentionMerge : public AttentionOperation {
   public:
    using AttentionOperation::AttentionOperation;
    int prepare(const Step&) override { return static_cast<int>(layout_->merges.size()); }
    void run(const Step& step, int begin, int end) const override {
        for (int i = begin; i < end; i++) {
            const auto& merge = layout_->merges[i];
            kernels_.attention_merge(args(step), merge.of.kv_head, merge.of.tokens, prefix_of(merge.of),
                                     layout_->states + merge.of.states, merge.segment_floats, merge.num_segments);
            quantize(step, merge.of.kv_head, merge.of.tokens);
        }
    }
};

std::shared_ptr<AttentionLayout> make_layout(Plan& plan, const AttentionShape& shape, bool writes) {
    auto layout = std::make_shared<AttentionLayout>(plan, shape, writes);
    layout->states = plan.shared_floats(layout->capacity);
    return layout;
}

void append_rope_write(Plan& plan, const AttentionShape& shape, const AttentionRows& rows, bool writes_all) {
    auto& layout = plan.attention_layouts[shape.window];
    const bool is_first = !layout;
    if (is_first) layout = make_layout(plan, shape, true);
    plan.append(std::make_unique<RopeWrite>(plan, shape, rows, layout, is_first, writes_all));
}

void append_attending(Plan& plan, const AttentionShape& shape, const AttentionRows& rows,
                      const std::shared_ptr<AttentionLayout>& layout) {
    if (shape.window == 0) plan.append(std::make_unique<SharedAttention>("attention_shared", plan, shape, rows, layout));
    plan.append(std::make_unique<Attention>("attention", plan, shape, rows, layout));
    plan.append(std::make_unique<AttentionMerge>("attention_merge", plan, shape, rows, layout));
}

}  // namespace

void append_attention(Plan& plan, const AttentionShape& shape, const AttentionRows& rows) {
    append_rope_write(plan, shape, rows, false);
    append_attending(plan, shape, rows, plan.attention_layouts[shape.window]);
}

void append_narrowing_attention(Plan& plan, const AttentionShape& shape, const AttentionRows& rows, RowBuffer x, int width) {
    append_rope_write(plan, shape, rows, true);
    plan.narrow();
    const auto layout = make_layout(plan, shape, false);
    plan.append(std::make_unique<Narrow>(plan, shape, rows, layout, x, width));
    append_attending(plan, shape, rows, layout);
}

}  // namespace kvist
