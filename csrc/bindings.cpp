// The only file that knows Python: plans are built and replayed through it, weights are packed.
#include "mixture.h"
#include "operations.h"
#include "pack.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

namespace nb = nanobind;
using namespace nb::literals;

namespace kvist {
namespace {

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

// A format and a shape as Python gives them; no product of a shape that passes can overflow.
Format checked(int format, int64_t n, int64_t k) {
    if (format < 0 || format > static_cast<int>(Format::bf16)) throw std::invalid_argument("there is no such format");
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - kTile, kMostWeights = int64_t{1} << 48;
    if (n < 0 || k <= 0 || n > kMost || k > kMost || n > kMostWeights / k)
        throw std::invalid_argument("no matrix has such a shape");
    return static_cast<Format>(format);
}

Weight make_weight(Bytes data, int format, int n, int k, Floats bias) {
    const Format f = checked(format, n, k);
    const int64_t packed = packed_bytes(f, n, k);
    if (!is_dense(f) && !packed && n > 0) throw std::invalid_argument("this format has no rows of such a width");
    const int64_t need = packed ? packed : int64_t{n} * source_row_bytes(f, k);
    if (static_cast<int64_t>(data.size()) < need) throw std::invalid_argument("weight data is too short for its shape");
    if (bias.size() && static_cast<int>(bias.size()) < (n + kTile - 1) / kTile * kTile)
        throw std::invalid_argument("bias must be padded to a tile");
    return {data, f, n, k, bias};
}

const Ceilings& ceilings_named(const std::string& isa) {
    const Kernels* kernels = find_kernels(isa.c_str());
    if (!kernels) throw std::invalid_argument("this processor has no " + isa);
    return kernels->ceilings();
}

// Runs `items` pieces of `iterations` rounds each on the pool's threads; returns the multiplications and additions done, 0 where
// no kernel multiplies numbers of this type.
double run_products(const std::string& isa, ThreadPool& pool, const std::string& dtype, int64_t iterations, int items) {
    const Ceilings& c = ceilings_named(isa);
    const auto products = dtype == "int8" ? c.int8_products : dtype == "bfloat16" ? c.bfloat_products : c.float_products;
    if (!products) return 0;
    nb::gil_scoped_release unlock;
    std::vector<double> done(items);
    pool.open();
    pool.run(items, [&](int begin, int end) {
        for (int item = begin; item < end; item++) done[item] = products(iterations);
    });
    double total = 0;
    for (double each : done) total += each;
    return total;
}

void read_once(const std::string& isa, ThreadPool& pool, Floats data) {
    constexpr int64_t kPiece = 1 << 18;  // a megabyte
    const Ceilings& c = ceilings_named(isa);
    nb::gil_scoped_release unlock;
    const int items = static_cast<int>(data.size() / kPiece);
    std::vector<float> found(items);
    pool.open();
    pool.run(items, [&](int begin, int end) {
        for (int item = begin; item < end; item++) found[item] = c.read(data.data() + item * kPiece, kPiece);
    });
}

// Causal attention of a sequence's last num_queries tokens that materializes its scores, pass by pass over all heads.
// prepared: `transposed` holds the keys already. q, out: [num_queries][num_q_heads][head_dim]; k, v: [num_keys][num_kv_heads][head_dim]; scores: as NaiveAttention says.
void naive_attention(const std::string& isa, ThreadPool& pool, Floats q, Floats k, Floats v, WritableFloats transposed,
                     WritableFloats scores, WritableFloats out, int num_q_heads, int num_kv_heads, int head_dim, float scale,
                     bool prepared) {
    if (num_q_heads <= 0 || num_kv_heads <= 0 || num_q_heads % num_kv_heads || head_dim <= 0 || head_dim > 256)
        throw std::invalid_argument("no attention has such heads");
    const int64_t q_width = int64_t{num_q_heads} * head_dim, kv_width = int64_t{num_kv_heads} * head_dim;
    const int64_t num_queries = static_cast<int64_t>(q.size()) / q_width, num_keys = static_cast<int64_t>(k.size()) / kv_width;
    if (num_queries > num_keys || num_keys > std::numeric_limits<int32_t>::max() / 2)
        throw std::invalid_argument("there are fewer keys than queries, or too many");
    const Kernels* kernels = find_kernels(isa.c_str());
    if (!kernels) throw std::invalid_argument("this processor has no " + isa);
    const Baselines& passes = kernels->baselines();
    if (head_dim % passes.step) throw std::invalid_argument("head_dim must be a multiple of " + std::to_string(passes.step));
    NaiveAttention a{};
    a.q = q.data(), a.k = k.data(), a.v = v.data();
    a.transposed = transposed.data(), a.scores = scores.data(), a.out = out.data();
    a.num_queries = static_cast<int>(num_queries), a.num_keys = static_cast<int>(num_keys);
    a.first_query = a.num_keys - a.num_queries;
    a.num_q_heads = num_q_heads, a.num_kv_heads = num_kv_heads, a.head_dim = head_dim;
    a.scale = scale;
    if (static_cast<int64_t>(q.size()) != num_queries * q_width || static_cast<int64_t>(k.size()) != num_keys * kv_width ||
        v.size() < k.size() || out.size() < q.size() || static_cast<int64_t>(transposed.size()) < kv_width * a.row() ||
        static_cast<int64_t>(scores.size()) < int64_t{num_q_heads} * num_queries * a.row())
        throw std::invalid_argument("an array is too short for its shape");
    nb::gil_scoped_release unlock;
    constexpr int kBlock = 48;  // queries of an item
    const int blocks = (a.num_queries + kBlock - 1) / kBlock;
    if (!prepared)
        pool.run(num_kv_heads, [&](int begin, int end) {
            for (int head = begin; head < end; head++) passes.lay_out(a, head);
        });
    for (auto pass : {passes.scores, passes.softmax, passes.values})
        pool.run(num_q_heads * blocks, [&](int begin, int end) {
            for (int item = begin; item < end; item++) {
                const int first = item % blocks * kBlock;
                pass(a, item / blocks, first, std::min(first + kBlock, a.num_queries));
            }
        });
}

class PythonPlan {
   public:
    PythonPlan(const std::string& isa, std::shared_ptr<ThreadPool> pool, int max_tokens, int max_rows)
        : plan_(kernels_named(isa), std::move(pool), max_tokens, max_rows) {
        rows_.reserve(max_rows);
        positions_.reserve(max_tokens);
    }
    PythonPlan(const PythonPlan&) = delete;
    PythonPlan& operator=(const PythonPlan&) = delete;

    static const Kernels& kernels_named(const std::string& isa) {
        if (isa.empty()) return best_kernels();
        const Kernels* kernels = find_kernels(isa.c_str());
        if (!kernels) throw std::invalid_argument("this processor has no " + isa);
        return *kernels;
    }

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

    // out: may be the place of the queries. quantized: also gets what is attended; -1: nobody asks for it.
    void attention(int qkv, int q_column, int k_column, int v_column, int out, int quantized, int64_t block_bytes,
                   int64_t k_offset, int64_t v_offset, int kv_type, int block_size, int num_q_heads, int num_kv_heads,
                   int head_dim, int window, float scale, float softcap, int rope_table, bool is_integer) {
        if (is_integer && static_cast<KVType>(kv_type) != KVType::int8)
            throw std::invalid_argument("integer attention needs int8 keys and values");
        const AttentionShape shape = {
            block_bytes, k_offset, v_offset, static_cast<KVType>(kv_type), block_size, num_q_heads, num_kv_heads, head_dim,
            window,      scale,    softcap,  rope_tables_.at(rope_table),  is_integer};
        const AttentionRows rows = {plan_.buffer(qkv, q_column), plan_.buffer(qkv, k_column), plan_.buffer(qkv, v_column),
                                    plan_.buffer(out), quantized < 0 ? Activations{} : plan_.quantized(quantized)};
        append_attention(plan_, shape, rows);
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
    // first, count: of its operations; -1: all that follow.
    void replay(Ints2 rows, Ints block_tables, Ints token_ids, WritableBytes kv, bool timed, int first, int count) {
        const int num_tokens = static_cast<int>(token_ids.size()), num_rows = static_cast<int>(rows.shape(0));
        if (num_tokens > plan_.max_tokens || num_rows > plan_.max_rows)
            throw std::invalid_argument("step is larger than its plan");
        rows_.clear();
        positions_.assign(num_tokens, 0);
        for (int r = 0; r < num_rows; r++) {
            const StepRow row = {rows(r, 0), rows(r, 1), rows(r, 2), block_tables.data() + rows(r, 3)};
            check_blocks(row, rows(r, 3), block_tables, kv.size());
            rows_.push_back(row);
            for (int i = 0; i < row.num_tokens; i++) positions_.at(row.first_row + i) = row.start + i;
        }
        const Step step = {rows_.data(), num_rows, num_tokens, token_ids.data(), positions_.data(), nullptr, 0, kv.data()};
        nb::gil_scoped_release unlock;
        plan_.replay(step, timed, first, count);
    }
    // For a head: replays on rows `logit_rows` of the body's last step.
    void replay_head(Ints logit_rows, bool timed, int first, int count) {
        const int num_rows = static_cast<int>(logit_rows.size());
        if (num_rows > plan_.max_tokens) throw std::invalid_argument("more rows than the head was built for");
        const Step step = {nullptr, 0, num_rows, nullptr, nullptr, logit_rows.data(), num_rows, nullptr};
        nb::gil_scoped_release unlock;
        plan_.replay(step, timed, first, count);
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
    std::vector<StepRow> rows_;
    std::vector<int32_t> positions_;
    int block_size_ = 0;  // 0: the plan has no attention
    int64_t block_bytes_ = 0;
    uint8_t* finite_ = nullptr;
    int32_t* best_ = nullptr;
    Mixture mixture_;
};

}  // namespace

NB_MODULE(_native, m) {
    // A program may end without shutting its engine down: the system takes the memory back, nobody need hear of it.
    nb::set_leak_warnings(false);
    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int>(), "num_threads"_a)
        .def_prop_ro("num_threads", &ThreadPool::num_threads)
        .def("open", &ThreadPool::open);
    nb::class_<Weight>(m, "Weight")
        .def_ro("n", &Weight::n)
        .def_ro("k", &Weight::k)
        .def_prop_ro("format", [](const Weight& w) { return static_cast<int>(w.format); })
        .def_prop_ro("num_bytes", [](const Weight& w) { return w.data.size(); });
    m.def("plain_twin", [](const std::string& isa) { return std::string(plain_twin(isa.c_str())); }, "isa"_a);
    m.def("isas", [] {
        const auto names = kernel_names();
        return std::vector<std::string>(names.begin(), names.end());
    });
    m.def("run_products", &run_products, "isa"_a, "pool"_a, "dtype"_a, "iterations"_a, "items"_a);
    m.def("read_once", &read_once, "isa"_a, "pool"_a, "data"_a);
    m.def("naive_attention", &naive_attention, "isa"_a, "pool"_a, "q"_a, "k"_a, "v"_a, "transposed"_a, "scores"_a, "out"_a,
          "num_q_heads"_a, "num_kv_heads"_a, "head_dim"_a, "scale"_a, nb::kw_only(), "prepared"_a);
    m.attr("layout_version") = kLayoutVersion;
    m.attr("interface") = KVIST_INTERFACE;
    m.def("weight", &make_weight, "data"_a, "weight_format"_a, "n"_a, "k"_a, "bias"_a);
    m.def(
        "packed_bytes", [](int format, int64_t n, int64_t k) { return packed_bytes(checked(format, n, k), n, k); },
        "weight_format"_a, "n"_a, "k"_a);
    m.def(
        "pack",
        [](int format, Bytes source, int64_t n, int64_t k, Ints source_rows, WritableBytes packed) {
            const Format f = checked(format, n, k);
            if (is_dense(f) || (!packed_bytes(f, n, k) && n > 0))
                throw std::invalid_argument("this format has no packed rows of such a width");
            if (static_cast<int64_t>(source.size()) < n * source_row_bytes(f, k) ||
                static_cast<int64_t>(packed.size()) < packed_bytes(f, n, k))
                throw std::invalid_argument("array is too short for its shape");
            if (source_rows.size() && static_cast<int64_t>(source_rows.size()) != n)
                throw std::invalid_argument("as many source rows as outputs are wanted");
            for (std::size_t i = 0; i < source_rows.size(); i++)
                if (source_rows(i) < 0 || source_rows(i) >= n) throw std::invalid_argument("row out of range");
            nb::gil_scoped_release unlock;
            pack(f, source.data(), n, k, source_rows.size() ? source_rows.data() : nullptr, packed.data(), 0,
                 (n + kTile - 1) / kTile);
        },
        "weight_format"_a, "source"_a, "n"_a, "k"_a, "source_rows"_a, "packed"_a);
    nb::class_<PythonPlan>(m, "Plan")
        .def(nb::init<const std::string&, std::shared_ptr<ThreadPool>, int, int>(), "isa"_a, "pool"_a, "max_tokens"_a,
             "max_rows"_a)
        .def_prop_ro("isa", &PythonPlan::isa)
        .def_prop_ro("activation_dtype", &PythonPlan::activation_dtype)
        .def_prop_ro("workspace_bytes", &PythonPlan::workspace_bytes)
        .def_prop_ro("num_operations", &PythonPlan::num_operations)
        .def("borrow", &PythonPlan::borrow, nb::keep_alive<1, 2>())
        .def("buffer", &PythonPlan::buffer)
        .def("quantized", &PythonPlan::quantized)
        .def("quantized_within", &PythonPlan::quantized_within)
        .def("takes_quantized", &PythonPlan::takes_quantized)
        .def("rope_angles", &PythonPlan::rope_angles)
        .def("embed", &PythonPlan::embed)
        .def("norm", &PythonPlan::norm)
        .def("norm_quantize", &PythonPlan::norm_quantize)
        .def("quantize", &PythonPlan::quantize)
        .def("linear", &PythonPlan::linear, "weights"_a, "columns"_a, "x"_a, "out"_a, nb::kw_only(), "accumulate"_a)
        .def("linear_dense", &PythonPlan::linear_dense, "weight"_a, "x"_a, "x_column"_a, "out"_a, "column"_a, nb::kw_only(),
             "accumulate"_a)
        .def("gated_linear", &PythonPlan::gated_linear)
        .def("gated_quantize", &PythonPlan::gated_quantize)
        .def("gated", &PythonPlan::gated, "x"_a, "gate_column"_a, "up_column"_a, "kind"_a, "width"_a, "out"_a, nb::kw_only(),
             "to_quantize"_a)
        .def("add", &PythonPlan::add)
        .def("attention", &PythonPlan::attention)
        .def("mixture", &PythonPlan::mixture)
        .def("gather", &PythonPlan::gather)
        .def("check_finite", &PythonPlan::check_finite)
        .def("best_logits", &PythonPlan::best_logits)
        .def("weight_sum", &PythonPlan::weight_sum)
        .def("draw", &PythonPlan::draw)
        .def("top_logits", &PythonPlan::top_logits)
        .def("finite", [](nb::handle self) { return nb::cast<PythonPlan&>(self).finite(self); })
        .def("best", [](nb::handle self) { return nb::cast<PythonPlan&>(self).best(self); })
        .def("replay", &PythonPlan::replay, "rows"_a, "block_tables"_a, "token_ids"_a, "kv"_a, nb::kw_only(), "timed"_a,
             "first"_a = 0, "count"_a = -1)
        .def("replay_head", &PythonPlan::replay_head, "logit_rows"_a, nb::kw_only(), "timed"_a, "first"_a = 0, "count"_a = -1)
        .def("view", [](nb::handle self, int id) { return nb::cast<PythonPlan&>(self).view(self, id); })
        .def("timings", &PythonPlan::timings);
}

}  // namespace kvist
