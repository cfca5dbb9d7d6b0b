// What Python is given: plans, weights and how they are packed, and what `bench kernels` and papers' baselines measure.
#include "pack.h"
#include "python_plan.h"

#include <limits>

using namespace nb::literals;

namespace kvist {
namespace {

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

// Runs `items` pieces of `iterations` rounds each on the pool's threads; returns the multiplications and additions done, 0 where
// no kernel multiplies numbers of this type.
double run_products(const std::string& isa, ThreadPool& pool, const std::string& dtype, int64_t iterations, int items) {
    const Ceilings& c = kernels_named(isa).ceilings();
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
    const Ceilings& c = kernels_named(isa).ceilings();
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
    const Baselines& passes = kernels_named(isa).baselines();
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
        .def("attention", &PythonPlan::attention, "qkv"_a, "q_column"_a, "k_column"_a, "v_column"_a, "out"_a, "quantized"_a,
             "block_bytes"_a, "k_offset"_a, "v_offset"_a, "kv_type"_a, "block_size"_a, "num_q_heads"_a, "num_kv_heads"_a,
             "head_dim"_a, "window"_a, "scale"_a, "softcap"_a, "rope_table"_a, "is_integer"_a, "narrowed"_a = -1)
        .def("mixture", &PythonPlan::mixture)
        .def("gather", &PythonPlan::gather)
        .def("check_finite", &PythonPlan::check_finite)
        .def("best_logits", &PythonPlan::best_logits)
        .def("weight_sum", &PythonPlan::weight_sum)
        .def("draw", &PythonPlan::draw)
        .def("top_logits", &PythonPlan::top_logits)
        .def("finite", [](nb::handle self) { return nb::cast<PythonPlan&>(self).finite(self); })
        .def("best", [](nb::handle self) { return nb::cast<PythonPlan&>(self).best(self); })
        .def("replay", &PythonPlan::replay, "rows"_a, "block_tables"_a, "token_ids"_a, "kv"_a, "num_kept"_a = nb::none(),
             nb::kw_only(), "timed"_a, "first"_a = 0, "count"_a = -1)
        .def("replay_head", &PythonPlan::replay_head, "logit_rows"_a, nb::kw_only(), "timed"_a, "first"_a = 0, "count"_a = -1)
        .def("view", [](nb::handle self, int id) { return nb::cast<PythonPlan&>(self).view(self, id); })
        .def("timings", &PythonPlan::timings);
}

}  // namespace kvist
