// Mixture of experts: tokens are grouped by expert, each expert's rows run through the same linear kernel, and a token's
// experts are added up in expert order, so that its result does not depend on who else chose them.
#include "mixture.h"

#include "operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvist {
namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

void copy_row(const Activations& from, int64_t row, const Activations& to, int64_t slot) {
    const int64_t k = from.k, groups = k / kGroup;
    if (from.bfloat) {
        std::memcpy(to.bfloat + slot * to.stride, from.bfloat + row * from.stride, k * sizeof(uint16_t));
        return;
    }
    std::memcpy(to.q + slot * k, from.q + row * k, k);
    std::memcpy(to.scale + slot * groups, from.scale + row * groups, groups * sizeof(float));
    std::memcpy(to.scaled_sum + slot * groups, from.scaled_sum + row * groups, groups * sizeof(float));
    std::memcpy(to.sum16 + slot * 2 * groups, from.sum16 + row * 2 * groups, 2 * groups * sizeof(int32_t));
}

// Which experts each token of the step goes to, and where its rows stand when rows are ordered by expert.
struct Routing {
    int num_experts, per_token;
    std::vector<int32_t> expert;      // [token][per_token], ascending
    std::vector<float> share;         // same
    std::vector<int32_t> slot;        // same: row of the grouped buffers
    std::vector<int32_t> token_of;    // [slot]
    std::vector<int32_t> first_slot;  // [num_experts + 1]
};

class Route : public Operation {
   public:
    Route(RowBuffer scores, std::shared_ptr<Routing> routing, bool normalize)
        : Operation("expert_routing"), scores_(scores), routing_(std::move(routing)), normalize_(normalize) {}

    int prepare(const Step& step) override {
        Routing& r = *routing_;
        std::fill(r.first_slot.begin(), r.first_slot.end(), 0);
        for (int token = 0; token < step.num_tokens; token++) choose(token);
        for (int e = 0; e < r.num_experts; e++) r.first_slot[e + 1] += r.first_slot[e];
        next_.assign(r.first_slot.begin(), r.first_slot.end());
        for (int i = 0; i < step.num_tokens * r.per_token; i++) {
            r.slot[i] = next_[r.expert[i]]++;
            r.token_of[r.slot[i]] = i / r.per_token;
        }
        return 0;
    }
    void run(const Step&, int, int) const override {}

   private:
    void choose(int token) {
        Routing& r = *routing_;
        const float* scores = scores_.data + token * scores_.stride;
        const float top = *std::max_element(scores, scores + r.num_experts);
        float total = 0, kept = 0;
        for (int e = 0; e < r.num_experts; e++) total += std::exp(scores[e] - top);
        int32_t* expert = r.expert.data() + token * r.per_token;
        float* share = r.share.data() + token * r.per_token;
        for (int i = 0; i < r.per_token; i++) {
            int best = -1;  // the largest score not taken yet; the lowest expert on ties
            for (int e = 0; e < r.num_experts; e++)
                if (std::find(expert, expert + i, e) == expert + i && (best < 0 || scores[e] > scores[best])) best = e;
            expert[i] = best;
            kept += std::exp(scores[best] - top);
        }
        std::sort(expert, expert + r.per_token);
        for (int i = 0; i < r.per_token; i++) {
            share[i] = std::exp(scores[expert[i]] - top) / (normalize_ ? kept : total);
            r.first_slot[expert[i] + 1]++;
        }
    }

    RowBuffer scores_;
    std::shared_ptr<Routing> routing_;
    std::vector<int32_t> next_;
    bool normalize_;
};

template <class Fn>
class PerSlots : public Operation {
   public:
    static constexpr int kSlotsPerItem = 4;
    PerSlots(std::string name, std::shared_ptr<Routing> routing, Fn fn)
        : Operation(std::move(name)), routing_(std::move(routing)), fn_(std::move(fn)) {}
    int prepare(const Step& step) override {
        num_slots_ = step.num_tokens * routing_->per_token;
        return ceil_div(num_slots_, kSlotsPerItem);
    }
    void run(const Step&, int begin, int end) const override {
        fn_(*routing_, begin * kSlotsPerItem, std::min(end * kSlotsPerItem, num_slots_));
    }

   private:
    std::shared_ptr<Routing> routing_;
    Fn fn_;
    int num_slots_ = 0;
};

template <class Fn>
std::unique_ptr<Operation> per_slots(std::string name, std::shared_ptr<Routing> routing, Fn fn) {
    return std::make_unique<PerSlots<Fn>>(std::move(name), std::move(routing), std::move(fn));
}

// For each expert with rows: its weights times its rows.
class ExpertLinear : public Operation {
   public:
    static constexpr int kTilesPerItem = 4;

    ExpertLinear(Plan& plan, std::shared_ptr<Routing> routing, const std::vector<PackedMatrix>& experts, Activations x,
                 RowBuffer rows, RowBuffer y, bool is_quantized)
        : Operation("expert_linear"), kernels_(plan.kernels), routing_(std::move(routing)), rows_(rows),
          is_quantized_(is_quantized) {
        for (const auto& w : experts) args_.push_back({w, x, y.data, y.stride, false});
        pieces_per_expert_ = ceil_div(ceil_div(experts[0].n, kTile), kTilesPerItem);
    }
    int prepare(const Step&) override { return pieces_per_expert_ * routing_->num_experts; }
    void run(const Step&, int begin, int end) const override {
        for (int item = begin; item < end; item++) run_piece(item);
    }

   private:
    void run_piece(int item) const {
        const int expert = item / pieces_per_expert_, tile = item % pieces_per_expert_ * kTilesPerItem;
        const int begin = routing_->first_slot[expert], end = routing_->first_slot[expert + 1];
        if (begin == end) return;
        const LinearArgs& a = args_[expert];
        const int tile_end = std::min(tile + kTilesPerItem, ceil_div(a.w.n, kTile));
        if (is_quantized_) return kernels_.linear(a, tile, tile_end, begin, end);
        kernels_.linear_dense(a.w, {rows_.data + begin * rows_.stride, rows_.stride}, {a.y + begin * a.y_stride, a.y_stride},
                              false, tile * kTile, std::min(tile_end * kTile, a.w.n), end - begin);
    }

    const Kernels& kernels_;
    std::shared_ptr<Routing> routing_;
    std::vector<LinearArgs> args_;
    RowBuffer rows_;  // instead of args_' x where that is not quantized
    bool is_quantized_;
    int pieces_per_expert_;
};

}  // namespace

bool take_quantized(const Kernels& kernels, const std::vector<PackedMatrix>& experts) {
    return std::all_of(experts.begin(), experts.end(), [&](const auto& w) { return takes_quantized(kernels, w); });
}

void append_mixture(Plan& plan, const MixtureArgs& a) {
    const int slots = plan.max_tokens * a.per_token;
    auto routing = std::make_shared<Routing>();
    routing->num_experts = static_cast<int>(a.gate.size());
    routing->per_token = a.per_token;
    routing->expert.resize(slots);
    routing->share.resize(slots);
    routing->slot.resize(slots);
    routing->token_of.resize(slots);
    routing->first_slot.resize(routing->num_experts + 1);
    plan.append(std::make_unique<Route>(a.scores, routing, a.normalize));

    const Activations x = a.x, grouped = a.grouped, hidden = a.hidden;
    const RowBuffer x_rows = a.x_rows, grouped_rows = a.grouped_rows, hidden_rows = a.hidden_rows;
    const bool quantized_in = take_quantized(plan.kernels, a.gate) && take_quantized(plan.kernels, a.up),
               quantized_down = take_quantized(plan.kernels, a.down);
    const std::size_t row_bytes = a.gate[0].k * sizeof(float);
    plan.append(per_slots("expert_gather", routing, [=](const Routing& r, int begin, int end) {
        for (int slot = begin; slot < end; slot++) {
            const int64_t token = r.token_of[slot];
            if (quantized_in) copy_row(x, token, grouped, slot);
            else std::memcpy(grouped_rows.data + slot * grouped_rows.stride, x_rows.data + token * x_rows.stride, row_bytes);
        }
    }));
    plan.append(std::make_unique<ExpertLinear>(plan, routing, a.gate, grouped, grouped_rows, a.gate_rows, quantized_in));
    plan.append(std::make_unique<ExpertLinear>(plan, routing, a.up, grouped, grouped_rows, a.up_rows, quantized_in));
    const Kernels& kernels = plan.kernels;
    const RowBuffer gate_rows = a.gate_rows, up_rows = a.up_rows, down_rows = a.down_rows, out = a.out;
    const Activation kind = a.kind;
    const int expert_width = a.down[0].k;
    plan.append(per_slots("expert_gated", routing, [=, &kernels](const Routing&, int begin, int end) {
        if (quantized_down) kernels.gated_quantize(gate_rows, up_rows, kind, hidden, begin, end);
        else kernels.gated(gate_rows, up_rows, kind, false, expert_width, hidden_rows, begin, end);
    }));
    plan.append(std::make_unique<ExpertLinear>(plan, routing, a.down, hidden, hidden_rows, down_rows, quantized_down));
    const int width = static_cast<int>(a.down[0].n), per_token = a.per_token;
    plan.append(per_slots("expert_sum", routing, [=](const Routing& r, int begin, int end) {
        for (int i = begin; i < end; i++) {
            if (i % per_token) continue;  // the token's first slot stands for all
            float* to = out.data + i / per_token * out.stride;
            for (int c = 0; c < width; c++) to[c] = 0.0f;
            for (int j = i; j < i + per_token; j++) {
                const float* from = down_rows.data + r.slot[j] * down_rows.stride;
                for (int c = 0; c < width; c++) to[c] += r.share[j] * from[c];
            }
        }
    }));
}

}  // namespace kvist
