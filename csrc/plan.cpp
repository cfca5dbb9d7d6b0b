#include "plan.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace kvist {

namespace {

constexpr std::size_t kAlign = 64;

}  // namespace

Plan::Plan(const Kernels& kernels, std::shared_ptr<ThreadPool> pool, int max_tokens, int max_rows)
    : kernels(kernels), max_tokens(max_tokens), max_rows(max_rows), pool_(std::move(pool)) {}

void Plan::borrow(const Plan& lender, int id) {
    if (borrowed_.begin) throw std::logic_error("the plan borrows already");
    borrowed_ = lender.room_of(id);
}

Plan::Room Plan::room_of(int id) const {
    const Buffer& buffer = buffers_.at(id);
    return {reinterpret_cast<std::byte*>(buffer.data), sizeof(float) * max_tokens * buffer.stride};
}

std::byte* Plan::allocate(std::size_t bytes) {
    memory_.emplace_back(new std::byte[bytes + kAlign]);  // untouched pages stay unused
    workspace_bytes_ += bytes + kAlign;
    auto address = reinterpret_cast<std::uintptr_t>(memory_.back().get());
    return reinterpret_cast<std::byte*>((address + kAlign - 1) / kAlign * kAlign);
}

std::byte* Plan::allocate_passing(std::size_t bytes) {
    const std::size_t aligned = (bytes + kAlign - 1) / kAlign * kAlign;
    if (aligned > borrowed_.bytes) return allocate(bytes);
    borrowed_.bytes -= aligned;
    return std::exchange(borrowed_.begin, borrowed_.begin + aligned);
}

float* Plan::passing_floats(std::size_t count) { return reinterpret_cast<float*>(allocate_passing(count * sizeof(float))); }

float* Plan::shared_floats(std::size_t count) {
    if (count > shared_count_) {
        shared_ = passing_floats(count);
        shared_count_ = count;
    }
    return shared_;
}

int Plan::add_buffer(int width, int rows_per_token) {
    constexpr int kCrowding = 1024;  // rows a page or several apart would share a few sets of the cache
    const int stride = width % kCrowding ? width : width + kGroup;
    buffers_.push_back({passing_floats(static_cast<std::size_t>(max_tokens) * rows_per_token * stride), width, stride});
    return static_cast<int>(buffers_.size()) - 1;
}

int Plan::add_quantized(int k, int rows_per_token) {
    const std::size_t rows = static_cast<std::size_t>(max_tokens) * rows_per_token;
    Activations q{};
    q.k = k;
    if (kernels.has_bfloat_activations) {
        q.stride = k + 32;  // rows a power of two apart would crowd a part of the cache
        q.bfloat = reinterpret_cast<uint16_t*>(allocate_passing(rows * q.stride * sizeof(uint16_t)));
    } else {
        q.q = reinterpret_cast<int8_t*>(allocate_passing(rows * k));
        q.scale = passing_floats(rows * (k / kGroup));
        q.scaled_sum = passing_floats(rows * (k / kGroup));
        q.sum16 = reinterpret_cast<int32_t*>(allocate_passing(rows * (k / 16) * sizeof(int32_t)));
    }
    quantized_.push_back(q);
    return static_cast<int>(quantized_.size()) - 1;
}

int Plan::add_quantized_within(int within, int k) {
    const Room borrowed = std::exchange(borrowed_, room_of(within));
    const int id = add_quantized(k);
    borrowed_ = borrowed;
    return id;
}

RowBuffer Plan::buffer(int id, int column) const { return {buffers_.at(id).data + column, buffers_.at(id).stride}; }

Activations Plan::quantized(int id) const { return quantized_.at(id); }

void Plan::replay(const Step& whole, const Step& narrowed, bool timed, std::size_t first, std::size_t count) {
    using Clock = std::chrono::steady_clock;
    pool_->open();
    Clock::time_point start = timed ? Clock::now() : Clock::time_point();
    const std::size_t begin = std::min(first, operations_.size()), end = begin + std::min(count, operations_.size() - begin);
    for (std::size_t i = begin; i < end; i++) {
        const auto& operation = operations_[i];
        const Step& step = i < narrowed_from_ ? whole : narrowed;
        const int items = operation->prepare(step);
        const Operation& op = *operation;
        pool_->run(items, [&](int begin, int end) { op.run(step, begin, end); });
        if (!timed) continue;
        const auto now = Clock::now();
        operation->seconds += std::chrono::duration<double>(now - start).count();
        start = now;
    }
}

}  // namespace kvist
