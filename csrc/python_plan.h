// A plan and its weights as Python sees them: arrays that are kept alive, shapes that are checked.
#pragma once

#include "mixture.h"
#include "operations.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace nb = nanobind;

namespace kvist {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableInts = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A weight as Python sees it: keeps the arrays alive that the plan points into.
struct Weight {
    Bytes data;
    Format format;
    int n, k;
    Floats bias;  // padded to a tile; may hold nothing
    PackedMatrix matrix() const { return {data.data(), format, n, k, bias.size() ? bias.data() : nullptr}; }
};

inline const Kernels& kernels_named(const std::string& isa) {
    const Kernels* kernels = find_kernels(isa.c_str());
    if (!kernels) throw std::invalid_argument("this processor has no " + isa);
    return *kernels;
}

// isa: empty for the best that the processor has.
class PythonPlan {
   public:
    PythonPlan(const std::string& isa, std::shared_ptr<ThreadPool> pool, int max_tokens, int max_rows)
        : plan_(isa.empty() ? best_kernels() : kernels_named(isa), std::move(pool), max_tokens, max_rows) {
        rows_.reserve(max_rows), kept_.reserve(max_rows);
        positions_.reserve(max_tokens), kept_rows_.reserve(max_tokens);
    }
    PythonPlan(const PythonPlan&) = delete;
    PythonPlan& operator=(const PythonPlan&) = delete;

    std::string isa() const { return plan_.kernels.name; }
    std::string activation_dtype() const { return plan_.kernels.has_bfloat_activations ? "bfloat16" : "int8"; }
    int num_threads() const { return plan_.num_threads(); }
    std::size_t num_operations() const { return plan_.operations().size(); }
    int buffer(int width) { return plan_.add_buffer(width); }
    int quantized(int k) { return plan_.add_quantized(k); }
    int quantized_within(int buffer, int k) { return plan_.add_quantized_within(buffer, k); }
    void borrow(const PythonPlan& lender, int id) { plan_.borrow(lender.plan_, id); }
    std::size_t workspace_bytes() const { return plan_.workspace_bytes(); }

    int rope_angles(std::vector<double> inverse_frequency) {
        float* table = plan_.passing_floats(inverse_frequency.size() * 2 * plan_.max_tokens);
        plan_.append(make_rope_angles(plan_, std::move(inverse_frequency), table));
        rope_tables_.push_back(table);
        return static_cast<int>(rope_tables_.size()) - 1;
    }
    void embed(const Weight& table, float scale, int out) {
        keep(table), plan_.append(make_embed(plan_, table.matrix(), scale, out));
    }
    void norm(int x, int x_column, Floats w, float eps, int width, int heads, int y, int y_column) {
        floats_.push_back(w);
        plan_.append(make_norm(plan_, plan_.buffer(x, x_column), w.data(), eps, width, heads, plan_.buffer(y, y_column)));
    }
    void norm_quantize(int x, Floats w, float eps, int q) {
        floats_.push_back(w);
        plan_.append(make_norm_quantize(plan_, plan_.buffer(x), w.data(), eps, q));
    }
    void quantize(int x, int x_column, int q) { plan_.append(make_quantize(plan_, plan_.buffer(x, x_column), q)); }
    void linear(const std::vector<Weight*>& weights, const std::vector<int>& columns, int q, int out, bool accumulate) {
        std::vector<LinearPart> parts;
        for (std::size_t i = 0; i < weights.size(); i++) {
            keep(*weights[i]);
            parts.push_back({weights[i]->matrix(), columns.at(i)});
        }
        plan_.append(make_linear(plan_, std::move(parts), q, out, accumulate));
    }
    void linear_dense(const Weight& w, int x, int x_column, int out, int column, bool accumulate) {
        keep(w);
        plan_.append(make_linear_dense(plan_, w.matrix(), plan_.buffer(x, x_column), plan_.buffer(out, column), accumulate));
    }
    void gated_linear(const Weight& gate, const Weight& up, int x, int kind, int out) {
        if (gate.n != up.n || gate.n % kGroup)
            throw std::invalid_argument("gate and up must have as many outputs, in whole groups");
        keep(gate), keep(up);
        plan_.append(make_gated_linear(plan_, gate.matrix(), up.matrix(), x, static_cast<Activation>(kind), out));
    }
    void gated_quantize(int x, int gate_column, int up_column, int kind, int q) {
        plan_.append(make_gated_quantize(plan_, plan_.buffer(x, gate_column), plan_.buffer(x, up_column),
                                         static_cast<Activation>(kind), q));
    }
    void gated(int x, int gate_column, int up_column, int kind, int width, int y, bool to_quantize) {
        plan_.append(make_gated(plan_, plan_.buffer(x, gate_column), plan_.buffer(x, up_column), static_cast<Activation>(kind),
                                to_quantize, width, plan_.buffer(y)));
    }
    void add(int x, int y, int width) { plan_.append(make_add(plan_, plan_.buffer(x), plan_.buffer(y), width)); }

    // out: may be the place of the queries. quantized: also gets what is attended; -1: nobody asks for it. narrowed: a buffer
    // of which, as of q, only the rows that a step keeps go on from here; -1: all rows attend.
    void attention(int qkv, int q_column, int k_column, int v_column, int out, int quantized, int64_t block_bytes,
                   int64_t k_offset, int64_t v_offset, int kv_type, int block_size, int num_q_heads, int num_kv_heads,
                   int head_dim, int window, float scale, float softcap, int rope_table, bool is_integer, int narrowed) {
        if (is_integer && static_cast<KVType>(kv_type) != KVType::int8)
            throw std::invalid_argument("integer attention needs int8 keys and values");
        const AttentionShape shape = {
            block_bytes, k_offset, v_offset, static_cast<KVType>(kv_type), block_size, num_q_heads, num_kv_heads, head_dim,
            window,      scale,    softcap,  rope_tables_.at(rope_table),  is_integer};
        const AttentionRows rows = {plan_.buffer(qkv, q_column), plan_.buffer(qkv, k_column), plan_.buffer(qkv, v_column),
                                    plan_.buffer(out), quantized < 0 ? Activations{} : plan_.quantized(quantized)};
        if (narrowed < 0) append_attention(plan_, shape, rows);
        else append_narrowing_attention(plan_, shape, rows, plan_.buffer(narrowed), plan_.width_of_buffer(narrowed));
        block_size_ = block_size, block_bytes_ = block_bytes;
    }
    bool takes_quantized(const Weight& w) const { return kvist::takes_quantized(plan_.kernels, w.matrix()); }
    // x: a quantized buffer where all of gate and up take that, else a buffer of float rows.
    void mixture(int x, int scores, const std::vector<Weight*>& gate, const std::vector<Weight*>& up,
                 const std::vector<Weight*>& down, int per_token, bool normalize, int kind, int out) {
        auto matrices = [&](const std::vector<Weight*>& weights) {
            std::vector<PackedMatrix> result;
            for (const Weight* w : weights) keep(*w), result.push_back(w->matrix());
            return result;
        };
        MixtureArgs args;
        args.gate = matrices(gate), args.up = matrices(up), args.down = matrices(down);
        const bool quantized_in = take_quantized(plan_.kernels, args.gate) && take_quantized(plan_.kernels, args.up),
                   quantized_down = take_quantized(plan_.kernels, args.down);
        if (quantized_in) args.x = plan_.quantized(x);
        else args.x_rows = plan_.buffer(x);
        args.scores = plan_.buffer(scores);
        args.per_token = per_token;
        args.normalize = normalize;
        args.kind = static_cast<Activation>(kind);
        // Layers follow one another: one workspace for all.
        auto rows = [&](int& id, int width) {
            if (id < 0) id = plan_.add_buffer(width, per_token);
            return plan_.buffer(id);
        };
        auto quantized = [&](int& id, int width) {
            if (id < 0) id = plan_.add_quantized(width, per_token);
            return plan_.quantized(id);
        };
        Mixture& m = mixture_;
        if (quantized_in) args.grouped = quantized(m.grouped, args.gate[0].k);
        else args.grouped_rows = rows(m.grouped_rows, args.gate[0].k);
        if (quantized_down) args.hidden = quantized(m.hidden, args.down[0].k);
        else args.hidden_rows = rows(m.hidden_rows, args.down[0].k);
        args.gate_rows = rows(m.gate, padded(args.gate[0].n));
        args.up_rows = rows(m.up, padded(args.up[0].n));
        args.down_rows = rows(m.down, padded(args.down[0].n));
        args.out = plan_.buffer(out);
        append_mixture(plan_, args);
    }
    // Leaves whether each row of x is finite in `finite`.
    void check_finite(int x, int width) {
        finite_ = reinterpret_cast<uint8_t*>(plan_.allocate(plan_.max_tokens));
        plan_.append(make_check_finite(plan_, plan_.buffer(x), width, finite_));
    }
    // Leaves the index of each row's largest logit in `best`, -1 where one is not finite.
    void best_logits(int logits, int n, float softcap) {
        best_ = reinterpret_cast<int32_t*>(plan_.allocate(plan_.max_tokens * sizeof(int32_t)));
        append_best_logits(plan_, plan_.buffer(logits), n, softcap, best_);
    }
    // Of any row of logits; `largest` is its largest, and finite.
    double weight_sum(Floats logits, float largest, float temperature) const {
        return plan_.kernels.weight_sum(logits.data(), static_cast<int>(logits.size()), largest, {temperature, 0.0f});
    }
    int draw(Floats logits, float largest, float temperature, float least, double u) const {
        return plan_.kernels.draw(logits.data(), static_cast<int>(logits.size()), largest, {temperature, least}, u);
    }
    void top_logits(Floats logits, WritableInts ids) const {
        if (ids.size() > logits.size()) throw std::invalid_argument("more than there are logits");
        if (ids.size())
            plan_.kernels.top_logits(logits.data(), static_cast<int>(logits.size()), static_cast<int>(ids.size()), ids.data());
    }
    void gather(const PythonPlan& body, int x, int width, int y) {
        plan_.append(make_gather(plan_, body.plan_.buffer(x), width, plan_.buffer(y)));
    }

    // rows: [num_rows, 4] start, num_tokens, first_row, where its block table begins in block_tables.
    // num_kept: of each row's tokens, how many of the last ones go on where the plan narrows; none given: all.
    // first, count: of its operations; -1: all that follow.
    void replay(Ints2 rows, Ints block_tables, Ints token_ids, WritableBytes kv, std::optional<Ints> num_kept, bool timed,
                int first, int count) {
        const int num_tokens = static_cast<int>(token_ids.size()), num_rows = static_cast<int>(rows.shape(0));
        if (num_tokens > plan_.max_tokens || num_rows > plan_.max_rows)
            throw std::invalid_argument("step is larger than its plan");
        if (num_kept && static_cast<int>(num_kept->size()) != num_rows)
            throw std::invalid_argument("as many numbers of kept tokens as rows are wanted");
        rows_.clear(), kept_.clear(), kept_rows_.clear();
        positions_.assign(num_tokens, 0);
        for (int r = 0; r < num_rows; r++) {
            const StepRow row = {rows(r, 0), rows(r, 1), rows(r, 2), block_tables.data() + rows(r, 3)};
            check_blocks(row, rows(r, 3), block_tables, kv.size());
            rows_.push_back(row);
            for (int i = 0; i < row.num_tokens; i++) positions_.at(row.first_row + i) = row.start + i;
            keep_last(row, num_kept ? (*num_kept)(r) : row.num_tokens);
        }
        const Step step = {rows_.data(), num_rows, num_tokens, token_ids.data(), positions_.data(), nullptr, kv.data()};
        const Step kept = {kept_.data(),
                           static_cast<int>(kept_.size()),
                           static_cast<int>(kept_rows_.size()),
                           nullptr,
                           nullptr,
                           kept_rows_.data(),
                           kv.data()};
        nb::gil_scoped_release unlock;
        plan_.replay(step, kept, timed, first, count);
    }
    // For a head: replays on rows `logit_rows` of what the body's last step kept.
    void replay_head(Ints logit_rows, bool timed, int first, int count) {
        const int num_rows = static_cast<int>(logit_rows.size());
        if (num_rows > plan_.max_tokens) throw std::invalid_argument("more rows than the head was built for");
        const Step step = {nullptr, 0, num_rows, nullptr, nullptr, logit_rows.data(), nullptr};
        nb::gil_scoped_release unlock;
        plan_.replay(step, step, timed, first, count);
    }
    nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> finite(nb::handle self) {
        return {finite_, {static_cast<std::size_t>(finite_ ? plan_.max_tokens : 0)}, self};
    }
    nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> best(nb::handle self) {
        return {best_, {static_cast<std::size_t>(best_ ? plan_.max_tokens : 0)}, self};
    }
    nb::ndarray<nb::numpy, float, nb::ndim<2>> view(nb::handle self, int id) {
        const RowBuffer b = plan_.buffer(id);
        const auto width = static_cast<std::size_t>(plan_.width_of_buffer(id));
        return {b.data, {static_cast<std::size_t>(plan_.max_tokens), width}, self, {b.stride, 1}};
    }
    std::vector<std::tuple<std::string, double>> timings() const {
        std::vector<std::tuple<std::string, double>> result;
        for (const auto& operation : plan_.operations()) result.emplace_back(operation->name, operation->seconds);
        return result;
    }

   private:
    struct Mixture {  // buffers of the experts' workspace; -1: not needed so far
        int grouped = -1, grouped_rows = -1, hidden = -1, hidden_rows = -1, gate = -1, up = -1, down = -1;
    };
    static int padded(int n) { return (n + kTile - 1) / kTile * kTile; }

    void keep(const Weight& w) { weights_.push_back(w); }

    // Adds the last `count` tokens of a row to those that go on where the plan narrows.
    void keep_last(const StepRow& row, int count) {
        const int skipped = row.num_tokens - count, first_row = static_cast<int>(kept_rows_.size());
        if (count < 0 || skipped < 0 || row.first_row < 0 || (first_row && row.first_row <= kept_rows_.back()))
            throw std::invalid_argument("a row keeps tokens of its own, after those of the rows before it");
        if (count) kept_.push_back({row.start + skipped, count, first_row, row.block_table});
        for (int i = skipped; i < row.num_tokens; i++) kept_rows_.push_back(row.first_row + i);
    }

    // That a row's tokens stand in blocks that its table and the pool have: kernels read and write them unasked.
    void check_blocks(const StepRow& row, int64_t first, const Ints& tables, std::size_t kv_bytes) const {
        if (row.start < 0 || row.num_tokens < 0 || first < 0) throw std::invalid_argument("a row begins before its context");
        if (block_size_ == 0) return;
        const int64_t num_blocks = (int64_t{row.start} + row.num_tokens + block_size_ - 1) / block_size_;
        if (first + num_blocks > static_cast<int64_t>(tables.size()))
            throw std::invalid_argument("a row's block table is shorter than its context");
        const int64_t num_there = static_cast<int64_t>(kv_bytes) / block_bytes_;
        for (int64_t i = 0; i < num_blocks; i++)
            if (const int32_t block = row.block_table[i]; block < 0 || block >= num_there)
                throw std::invalid_argument("block " + std::to_string(block) + " is not one of the pool's " +
                                            std::to_string(num_there));
    }

    Plan plan_;
    std::vector<Weight> weights_;
    std::vector<Floats> floats_;
    std::vector<float*> rope_tables_;
    std::vector<StepRow> rows_, kept_;
    std::vector<int32_t> positions_, kept_rows_;
    int block_size_ = 0;  // 0: the plan has no attention
    int64_t block_bytes_ = 0;
    uint8_t* finite_ = nullptr;
    int32_t* best_ = nullptr;
    Mixture mixture_;
};

}  // namespace kvist
