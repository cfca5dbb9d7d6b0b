// Runs every kernel of every instruction set that this processor has, on ragged and empty batches, and compares with the
// portable ones. Built with AddressSanitizer and UBSan by scripts/sanitize; returns 0 if all is well.
#include "../mixture.h"
#include "../operations.h"
#include "../pack.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

namespace kvist {
namespace {

constexpr int kWidth = 256, kOutputs = 40, kPadded = 48, kHeadDim = 64, kQHeads = 2, kKVHeads = 1, kBlockSize = 16;
constexpr int kPerToken = 2, kExperts = 4;
constexpr int64_t kHalfBlock = int64_t{kKVHeads} * kHeadDim * kBlockSize * 2;
constexpr int64_t kBlockBytes = 6 * kHalfBlock;  // a layer each of float16, int8 and bfloat16
constexpr Format kQuantized[] = {Format::q4_0, Format::q4_1, Format::q4_k, Format::q5_0,
                                 Format::q5_1, Format::q5_k, Format::q6_k, Format::q8_0};

// Packed random bits with small scales. `source` holds exactly the bytes of its rows, so that reads beyond them are seen.
std::vector<uint8_t> random_matrix(Format format, int n, std::mt19937& random) {
    const auto row_bytes = static_cast<std::size_t>(source_row_bytes(format, kWidth));
    std::vector<uint8_t> source(row_bytes * n);
    for (auto& byte : source) byte = static_cast<uint8_t>(random());
    const bool wide = format == Format::q4_k || format == Format::q5_k || format == Format::q6_k;
    const std::size_t blocks = wide ? 1 : kWidth / kGroup, block_bytes = row_bytes / blocks;
    const bool has_minimum =
        format != Format::q4_0 && format != Format::q5_0 && format != Format::q8_0 && format != Format::q6_k;
    for (std::size_t b = 0; b < blocks * n; b++) {
        uint8_t* scale = source.data() + b * block_bytes + (format == Format::q6_k ? 208 : 0);
        scale[0] = static_cast<uint8_t>(random()), scale[1] = 0x1c;  // a half of about 0.004
        if (has_minimum) scale[2] = static_cast<uint8_t>(random()), scale[3] = 0x9c;
    }
    std::vector<uint8_t> packed(packed_bytes(format, n, kWidth));
    pack(format, source.data(), n, kWidth, nullptr, packed.data(), 0, (n + kTile - 1) / kTile);
    return packed;
}

struct Model {  // the weights of one plan
    std::vector<std::vector<uint8_t>> matrices;
    std::vector<float> dense, norm;
    std::vector<uint16_t> two_bytes;  // of each of the dense
};

Model make_model() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    Model model;
    for (Format format : kQuantized) model.matrices.push_back(random_matrix(format, kOutputs, random));
    for (int i = 0; i < 3 * kExperts; i++) model.matrices.push_back(random_matrix(Format::q4_1, kWidth, random));
    model.dense.resize(kOutputs * kWidth);
    model.norm.resize(kWidth);
    for (auto& x : model.dense) {
        x = normal(random);
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        model.two_bytes.push_back(static_cast<uint16_t>(bits >> 16));
    }
    for (auto& x : model.norm) x = normal(random);
    return model;
}

PackedMatrix expert_matrix(const Model& model, int i) {
    return {model.matrices[std::size(kQuantized) + i].data(), Format::q4_1, kWidth, kWidth, nullptr};
}

void append_experts(Plan& plan, const Model& model, int quantized, int scores, int out) {
    MixtureArgs args{};
    args.x = plan.quantized(quantized);
    args.scores = plan.buffer(scores);
    std::vector<PackedMatrix>* parts[] = {&args.gate, &args.up, &args.down};
    for (int i = 0; i < 3 * kExperts; i++) parts[i % 3]->push_back(expert_matrix(model, i));
    args.per_token = kPerToken;
    args.normalize = true;
    args.kind = Activation::silu;
    args.grouped = plan.quantized(plan.add_quantized(kWidth, kPerToken));
    args.hidden = plan.quantized(plan.add_quantized(kWidth, kPerToken));
    args.gate_rows = plan.buffer(plan.add_buffer(kWidth, kPerToken));
    args.up_rows = plan.buffer(plan.add_buffer(kWidth, kPerToken));
    args.down_rows = plan.buffer(plan.add_buffer(kWidth, kPerToken));
    args.out = plan.buffer(out);
    append_mixture(plan, args);
}

// All results of one step of `num_tokens` tokens, the first of them a request of its own, the rest starting at `start`.
std::vector<float> run(const char* isa, const Model& model, int num_tokens, int start, int window, int num_threads) {
    Plan plan(*find_kernels(isa), std::make_shared<ThreadPool>(num_threads), std::max(num_tokens, 1), 2);
    std::vector<std::pair<int, int>> results;  // buffer, width
    const int x = plan.add_buffer(kWidth), quantized = plan.add_quantized(kWidth);
    auto result = [&](int width) {
        results.emplace_back(plan.add_buffer(width <= kOutputs ? kPadded : width), width);
        return results.back().first;
    };
    plan.append(make_quantize(plan, plan.buffer(x), quantized));
    for (std::size_t i = 0; i < std::size(kQuantized); i++)
        plan.append(make_linear(plan, {{{model.matrices[i].data(), kQuantized[i], kOutputs, kWidth, nullptr}, 0}}, quantized,
                                result(kOutputs), false));
    plan.append(make_linear_dense(plan, {model.dense.data(), Format::f32, kOutputs, kWidth, nullptr}, plan.buffer(x),
                                  plan.buffer(result(kOutputs)), false));
    for (Format format : {Format::f16, Format::bf16}) {
        const PackedMatrix w = {model.two_bytes.data(), format, kOutputs, kWidth, nullptr};
        plan.append(make_linear_dense(plan, w, plan.buffer(x), plan.buffer(result(kOutputs)), false));
        if (takes_quantized(plan.kernels, w)) plan.append(make_linear(plan, {{w, 0}}, quantized, result(kOutputs), false));
    }
    const int scores = results.back().first;  // the first columns of the dense product
    append_experts(plan, model, quantized, scores, result(kWidth));
    plan.append(make_embed(plan, {model.matrices[6].data(), Format::q6_k, kOutputs, kWidth, nullptr}, 1.0f, result(kWidth)));
    plan.append(make_norm(plan, plan.buffer(x), model.norm.data(), 1e-5f, kWidth, 1, plan.buffer(result(kWidth))));
    plan.append(make_norm_quantize(plan, plan.buffer(x), model.norm.data(), 1e-5f, quantized));
    plan.append(make_linear(plan, {{{model.matrices[1].data(), Format::q4_1, kOutputs, kWidth, nullptr}, 0}}, quantized,
                            result(kOutputs), false));
    plan.append(make_gated_quantize(plan, plan.buffer(x), plan.buffer(x), Activation::gelu_tanh, quantized));
    plan.append(make_linear(plan, {{{model.matrices[1].data(), Format::q4_1, kOutputs, kWidth, nullptr}, 0}}, quantized,
                            result(kOutputs), false));
    const int hidden = plan.add_quantized(kWidth);
    plan.append(make_gated_linear(plan, expert_matrix(model, 0), expert_matrix(model, 1), quantized, Activation::silu, hidden));
    plan.append(make_linear(plan, {{{model.matrices[7].data(), Format::q8_0, kOutputs, kWidth, nullptr}, 0}}, hidden,
                            result(kOutputs), false));
    const int qkv = plan.add_buffer(kWidth);
    plan.append(make_gated(plan, plan.buffer(x), plan.buffer(x), Activation::silu, false, kWidth, plan.buffer(qkv)));
    float* angles = plan.passing_floats(static_cast<std::size_t>(kHeadDim) * plan.max_tokens);
    plan.append(make_rope_angles(plan, std::vector<double>(kHeadDim / 2, 0.3), angles));
    const AttentionShape shape = {kBlockBytes, 0,        kHalfBlock, KVType::f16, kBlockSize, kQHeads,
                                  kKVHeads,    kHeadDim, window,     0.2f,        0.0f,       angles};
    const int k_column = kQHeads * kHeadDim, v_column = k_column + kKVHeads * kHeadDim;
    const int attended = plan.add_quantized(kQHeads * kHeadDim);
    // The same queries over int8 and bfloat16 keys and values, in later parts of each block.
    const AttentionShape int8_shape = {kBlockBytes, 2 * kHalfBlock, 3 * kHalfBlock, KVType::int8, kBlockSize, kQHeads, kKVHeads,
                                       kHeadDim,    window,         0.2f,           0.0f,         angles,     true};
    AttentionShape bfloat_shape = shape;
    bfloat_shape.k_offset = 4 * kHalfBlock, bfloat_shape.v_offset = 5 * kHalfBlock;
    bfloat_shape.type = KVType::bf16;
    append_attention(plan, bfloat_shape,
                     {plan.buffer(qkv),
                      plan.buffer(qkv, k_column),
                      plan.buffer(qkv, v_column),
                      plan.buffer(result(kQHeads * kHeadDim)),
                      {}});
    append_attention(plan, int8_shape,
                     {plan.buffer(qkv),
                      plan.buffer(qkv, k_column),
                      plan.buffer(qkv, v_column),
                      plan.buffer(result(kQHeads * kHeadDim)),
                      {}});
    append_attention(plan, shape,
                     {plan.buffer(qkv), plan.buffer(qkv, k_column), plan.buffer(qkv, v_column),
                      plan.buffer(result(kQHeads * kHeadDim)), plan.quantized(attended)});
    // At last, only the last token of each request attends.
    const int narrowed = result(kQHeads * kHeadDim), moved = plan.add_buffer(kWidth);
    append_narrowing_attention(
        plan, bfloat_shape,
        {plan.buffer(qkv), plan.buffer(qkv, k_column), plan.buffer(qkv, v_column), plan.buffer(narrowed), {}},
        plan.buffer(moved), kWidth);
    for (int buffer : {narrowed, moved}) {
        const RowBuffer y = plan.buffer(buffer);
        std::fill(y.data, y.data + num_tokens * y.stride, 0.0f);
    }

    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (int i = 0; i < num_tokens * kWidth; i++) plan.buffer(x).data[i] = normal(random);
    const int blocks = (start + num_tokens) / kBlockSize + 1;
    std::vector<uint8_t> kv(2 * blocks * kBlockBytes, 0x11);  // small halves where earlier steps would have written
    std::vector<int32_t> table(2 * blocks), tokens(num_tokens, kOutputs - 1), positions(num_tokens, 0);
    for (int i = 0; i < 2 * blocks; i++) table[i] = 2 * blocks - 1 - i;
    for (int i = 1; i < num_tokens; i++) positions[i] = start + i - 1;
    std::vector<StepRow> rows;
    if (num_tokens > 0) rows.push_back({0, 1, 0, table.data()});
    if (num_tokens > 1) rows.push_back({start, num_tokens - 1, 1, table.data() + blocks});
    const Step step = {rows.data(), static_cast<int>(rows.size()), num_tokens, tokens.data(), positions.data(), nullptr,
                       kv.data()};
    std::vector<StepRow> kept_rows;
    std::vector<int32_t> sources;
    for (const StepRow& row : rows) {
        const int last = row.num_tokens - 1;
        kept_rows.push_back({row.start + last, 1, static_cast<int32_t>(sources.size()), row.block_table});
        sources.push_back(row.first_row + last);
    }
    const int num_kept = static_cast<int>(sources.size());
    const Step kept = {kept_rows.data(), num_kept, num_kept, nullptr, nullptr, sources.data(), kv.data()};
    plan.replay(step, kept, false);
    std::vector<float> all;
    for (auto [buffer, width] : results)
        for (int row = 0; row < num_tokens; row++) {
            const RowBuffer y = plan.buffer(buffer);
            all.insert(all.end(), y.data + row * y.stride, y.data + row * y.stride + width);
        }
    return all;
}

// What a head and its samplers find in rows of every length, as numbers.
std::vector<double> look_through(const char* isa, const std::vector<float>& all) {
    const Kernels& kernels = *find_kernels(isa);
    std::vector<double> found;
    for (int n : {1, 15, 16, 33, 1023, 1025, 3000}) {
        const std::vector<float> logits(all.end() - n, all.end());  // so that reads beyond them are seen
        const BestLogit best = kernels.best_logit(logits.data(), n);
        found.insert(found.end(), {best.logit, static_cast<double>(best.id)});
        for (int count : {1, n / 2 + 1, n}) {
            std::vector<int32_t> ids(count);
            kernels.top_logits(logits.data(), n, count, ids.data());
            found.insert(found.end(), ids.begin(), ids.end());
        }
        found.push_back(kernels.weight_sum(logits.data(), n, best.logit, {0.7f, 0.0f}));
        for (double u : {0.0, 0.3, 0.999999}) found.push_back(kernels.draw(logits.data(), n, best.logit, {0.7f, 0.01f}, u));
    }
    return found;
}

// How many items of runs of all sizes were not called exactly once, with and without pauses that let the threads sleep.
int miscounted_items(int num_threads) {
    ThreadPool pool(num_threads);
    int failures = 0;
    for (int round = 0; round < 2000; round++) {
        if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round));
        if (round % 3 == 0) pool.open();
        std::vector<int> calls(round % 41);
        pool.run(round % 41, [&](int begin, int end) {
            for (int item = begin; item < end; item++) calls[item]++;
        });
        for (int count : calls) failures += count != 1;
    }
    return failures;
}

}  // namespace
}  // namespace kvist

int main() {
    using namespace kvist;
    const Model model = make_model();
    int failures = 0, checks = 0;
    for (int num_tokens : {0, 1, 2, 5, 16, 17, 37})
        for (auto [start, window] : {std::pair{0, 0}, {30, 7}, {1500, 0}, {1030, 600}}) {
            for (const char* isa : kernel_names()) {
                const auto wanted = run(plain_twin(isa), model, num_tokens, start, window, 1);
                for (float x : wanted) failures += !std::isfinite(x);
                for (int threads : {1, 3}) {
                    const auto got = run(isa, model, num_tokens, start, window, threads);
                    const bool same = got == wanted;
                    checks++;
                    failures += !same;
                    if (!same) std::printf("%s differs: %d tokens from %d, window %d\n", isa, num_tokens, start, window);
                }
            }
        }
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> logits(3000);
    for (auto& x : logits) x = std::round(8 * normal(random)) / 4;  // with equals
    for (const char* isa : kernel_names()) checks++, failures += look_through(isa, logits) != look_through("portable", logits);
    for (int threads : {1, 2, 3, 5}) checks++, failures += miscounted_items(threads);
    std::printf("%d comparisons, %d failures\n", checks, failures);
    return failures != 0;
}
