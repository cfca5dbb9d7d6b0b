// Attention of a step as four operations: rotating and writing K and V, what several requests share, each request, and the merge
// of contexts that are split among threads.
#include "attention_layout.h"
#include "operations.h"

#include <algorithm>

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

// Does what must be done before any attention: rotating and writing rows of several items. The first layer of a window also
// lays the step out, for all of them.
class RopeWrite : public AttentionOperation {
   public:
    RopeWrite(Plan& plan, const AttentionShape& shape, const AttentionRows& rows, std::shared_ptr<AttentionLayout> layout,
              bool is_first)
        : AttentionOperation("rope_write", plan, shape, rows, std::move(layout)), is_first_(is_first) {}
    int prepare(const Step& step) override {
        if (is_first_) layout_->prepare(step);
        return static_cast<int>(layout_->written.size());
    }
    void run(const Step& step, int begin, int end) const override {
        for (int i = begin; i < end; i++)
            rope_and_write(kernels_, shape_, rows_, step, layout_->written[i], 0, shape_.num_kv_heads);
    }

   private:
    const bool is_first_;
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

}  // namespace

void append_attention(Plan& plan, const AttentionShape& shape, const AttentionRows& rows) {
    auto& layout = plan.attention_layouts[shape.window];
    const bool is_first = !layout;
    if (is_first) {
        layout = std::make_shared<AttentionLayout>(plan, shape);
        layout->states = plan.shared_floats(layout->capacity);
    }
    plan.append(std::make_unique<RopeWrite>(plan, shape, rows, layout, is_first));
    if (shape.window == 0) plan.append(std::make_unique<SharedAttention>("attention_shared", plan, shape, rows, layout));
    plan.append(std::make_unique<Attention>("attention", plan, shape, rows, layout));
    plan.append(std::make_unique<AttentionMerge>("attention_merge", plan, shape, rows, layout));
}

}  // namespace kvist
