#include "thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvist {
namespace {

constexpr uint64_t kCountMask = 0xffffffff;
constexpr int kSpinsBeforeClock = 64;
constexpr auto kSpin = std::chrono::microseconds(100);  // longer than the gap between two operations of a step

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
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

void ThreadPool::run_erased(int num_items, Call call, const void* context) {
    if (num_items <= 1 || threads_.empty()) {
        for (int item = 0; item < num_items; item++) call(context, item);
        return;
    }
    call_ = call;
    context_ = context;
    num_items_ = num_items;
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t epoch = (unclaimed_.load(std::memory_order_relaxed) >> 32) + 1;
    unclaimed_.store(epoch << 32 | static_cast<uint32_t>(num_items), std::memory_order_seq_cst);
    if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard lock(mutex_);  // a thread about to sleep has either seen the work or is waiting by now
        wake_.notify_all();
    }
    work_until_empty();
    for (int spins = 0; finished_.load(std::memory_order_acquire) < num_items; spins++) {
        // The last item may be on a thread without a core: do not keep that core from it.
        if (spins < 2000) relax();
        else std::this_thread::yield();
    }
}

void ThreadPool::work_until_empty() {
    uint64_t seen = unclaimed_.load(std::memory_order_acquire);
    while (seen & kCountMask) {
        if (!unclaimed_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        call_(context_, num_items_ - static_cast<int>(seen & kCountMask));
        finished_.fetch_add(1, std::memory_order_release);
        seen = unclaimed_.load(std::memory_order_acquire);
    }
}

void ThreadPool::worker() {
    while (!stopping_.load(std::memory_order_relaxed)) {
        work_until_empty();
        const auto start = std::chrono::steady_clock::now();
        bool found = false;
        while (!found && std::chrono::steady_clock::now() - start < kSpin)
            for (int i = 0; i < kSpinsBeforeClock && !found; i++) {
                relax();
                found = unclaimed_.load(std::memory_order_relaxed) & kCountMask;
            }
        if (found) continue;
        std::unique_lock lock(mutex_);
        num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [this] { return stopping_.load() || (unclaimed_.load(std::memory_order_seq_cst) & kCountMask); });
        num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
}

}  // namespace kvist
