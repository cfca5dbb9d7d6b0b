#include "thread_pool.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace kvist {
namespace {

constexpr int kLongestRun = 8;  // items
constexpr int kSpinsBeforeClock = 64;
constexpr auto kSpin = std::chrono::microseconds(100);     // for the next operation: longer than the gaps inside a step
constexpr auto kWaitSpin = std::chrono::microseconds(50);  // for other threads' last items: longer than an item

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until `done` or for `limit`; returns whether it was done.
template <class Done, class Duration>
bool spin_until(Done done, Duration limit) {
    const auto start = std::chrono::steady_clock::now();
    do {
        for (int i = 0; i < kSpinsBeforeClock; i++) {
            if (done()) return true;
            relax();
        }
    } while (std::chrono::steady_clock::now() - start < limit);
    return done();
}

// Whether the process may use one core only at this moment: others can be taken from it while it runs.
bool has_one_core() {
#if defined(__linux__)
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) == 1;
#else
    return false;
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : shares_(std::max(num_threads, 1)) {
    try {
        for (int i = 1; i < num_threads; i++) threads_.emplace_back([this, i] { worker(static_cast<std::size_t>(i)); });
    } catch (const std::system_error&) {
        const int num_started = ThreadPool::num_threads();
        stop();  // a thread that nobody joins would end the process
        throw std::runtime_error("the system gives " + std::to_string(num_started) + " of " + std::to_string(num_threads) +
                                 " threads");
    }
    is_alone_ = threads_.empty();
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    {
        std::lock_guard lock(mutex_);
        stopping_.store(true);
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void ThreadPool::open() {
    is_alone_ = threads_.empty() || has_one_core();
    if (!is_alone_) wake();
}

void ThreadPool::wake() {
    if (num_sleeping_.load(std::memory_order_seq_cst) == 0) return;
    std::lock_guard lock(mutex_);  // a thread about to sleep has either seen the work or is waiting by now
    num_opened_++;
    wake_.notify_all();
}

void ThreadPool::run_erased(int num_items, Call call, const void* context) {
    if (num_items <= 1 || is_alone_) {
        if (num_items > 0) call(context, 0, num_items);
        return;
    }
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t n = num_items, count = shares_.size();
    for (uint64_t i = 0; i < count; i++) {
        Share& share = shares_[i];
        share.call = call;
        share.context = context;
        share.unclaimed.store((n * i / count) << 32 | n * (i + 1) / count, std::memory_order_release);
        share.num_begun.fetch_add(1, std::memory_order_seq_cst);
    }
    wake();
    work_until_empty(0);
    const auto all_done = [&] { return finished_.load(std::memory_order_acquire) == num_items; };
    if (spin_until(all_done, kWaitSpin)) return;
    // A thread without a core holds the last items: sleep, so that it can have this one.
    for (int seen; (seen = finished_.load(std::memory_order_acquire)) != num_items;) finished_.wait(seen);
}

int ThreadPool::work_on(Share& share, bool is_own) {
    int num_done = 0;
    uint64_t seen = share.unclaimed.load(std::memory_order_acquire);
    for (;;) {
        const uint64_t begin = seen >> 32, end = seen & 0xffffffff;
        if (begin == end) return num_done;
        const uint64_t count = std::clamp<uint64_t>((end - begin) / 2, 1, kLongestRun);
        const uint64_t left = is_own ? (begin + count) << 32 | end : begin << 32 | (end - count);
        if (!share.unclaimed.compare_exchange_weak(seen, left, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        const int first = static_cast<int>(is_own ? begin : end - count);
        share.call(share.context, first, first + static_cast<int>(count));
        num_done += static_cast<int>(count);
        seen = share.unclaimed.load(std::memory_order_acquire);
    }
}

void ThreadPool::work_until_empty(std::size_t index) {
    int num_done = work_on(shares_[index], true);
    for (std::size_t i = 1; i < shares_.size(); i++) num_done += work_on(shares_[(index + i) % shares_.size()], false);
    if (num_done == 0) return;
    finished_.fetch_add(num_done, std::memory_order_release);
    finished_.notify_one();
}

void ThreadPool::worker(std::size_t index) {
    const Share& own = shares_[index];
    while (!stopping_.load(std::memory_order_relaxed)) {
        const uint32_t seen = own.num_begun.load(std::memory_order_acquire);
        work_until_empty(index);
        const auto has_work = [&] {
            return own.num_begun.load(std::memory_order_relaxed) != seen || stopping_.load(std::memory_order_relaxed);
        };
        if (spin_until(has_work, kSpin)) continue;
        std::unique_lock lock(mutex_);
        num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
        const uint64_t opened = num_opened_;
        wake_.wait(lock, [&] { return stopping_.load() || num_opened_ != opened || own.num_begun.load() != seen; });
        num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
}

}  // namespace kvist
