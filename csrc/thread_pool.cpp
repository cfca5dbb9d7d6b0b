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

constexpr uint64_t kCountMask = 0xffffffff;
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

ThreadPool::ThreadPool(int num_threads) {
    try {
        for (int i = 1; i < num_threads; i++) threads_.emplace_back([this] { worker(); });
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
    call_ = call;
    context_ = context;
    num_items_ = num_items;
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t epoch = (unclaimed_.load(std::memory_order_relaxed) >> 32) + 1;
    unclaimed_.store(epoch << 32 | static_cast<uint32_t>(num_items), std::memory_order_seq_cst);
    wake();
    work_until_empty();
    const auto all_done = [&] { return finished_.load(std::memory_order_acquire) == num_items; };
    if (spin_until(all_done, kWaitSpin)) return;
    // A thread without a core holds the last items: sleep, so that it can have this one.
    for (int seen; (seen = finished_.load(std::memory_order_acquire)) != num_items;) finished_.wait(seen);
}

void ThreadPool::work_until_empty() {
    int num_done = 0;
    uint64_t seen = unclaimed_.load(std::memory_order_acquire);
    while (const int left = static_cast<int>(seen & kCountMask)) {
        const int count = std::clamp(left / (2 * num_threads()), 1, kLongestRun);
        if (!unclaimed_.compare_exchange_weak(seen, seen - count, std::memory_order_acq_rel, std::memory_order_acquire))
            continue;
        const int begin = num_items_ - left;
        call_(context_, begin, begin + count);
        num_done += count;
        seen = unclaimed_.load(std::memory_order_acquire);
    }
    if (num_done == 0) return;
    finished_.fetch_add(num_done, std::memory_order_release);
    finished_.notify_one();
}

void ThreadPool::worker() {
    const auto has_work = [this] {
        return (unclaimed_.load(std::memory_order_relaxed) & kCountMask) || stopping_.load(std::memory_order_relaxed);
    };
    while (!stopping_.load(std::memory_order_relaxed)) {
        work_until_empty();
        if (spin_until(has_work, kSpin)) continue;
        std::unique_lock lock(mutex_);
        num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
        const uint64_t opened = num_opened_;
        wake_.wait(lock, [&] {
            return stopping_.load() || num_opened_ != opened || (unclaimed_.load(std::memory_order_seq_cst) & kCountMask);
        });
        num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
}

}  // namespace kvist
