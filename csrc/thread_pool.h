// A pool of threads that share the items of one operation at a time. Each has a share of neighbouring items, the same part of
// every operation, so that what it reads next is what it has just written or fetched. It takes runs of them from the front, long
// ones first and short ones at the end; who is done takes from the back of others' shares, so that a thread whose core is taken
// away delays one run only. They spin briefly for the next operation, then sleep; `open` wakes them ahead of a step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace kvist {

class ThreadPool {
   public:
    // The caller of `run` is one of the `num_threads`. Throws std::runtime_error if the system does not give them.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

    // Work is about to come: wakes the threads, or leaves all to the caller where the process has one core now. Costs little
    // where they are awake.
    void open();

    // Calls fn(begin, end) for runs of items that make up [0, num_items), on any thread, in no order; returns when all are done.
    template <class Fn>
    void run(int num_items, const Fn& fn) {
        run_erased(num_items, [](const void* f, int begin, int end) { (*static_cast<const Fn*>(f))(begin, end); }, &fn);
    }

   private:
    using Call = void (*)(const void*, int, int);

    void run_erased(int num_items, Call call, const void* context);
    void wake();
    void stop();
    // One thread's part of the operation that runs, all in one cache line.
    struct alignas(64) Share {
        std::atomic<uint64_t> unclaimed{0};  // items [begin, end), as begin << 32 | end
        std::atomic<uint32_t> num_begun{0};  // operations
        // Who has claimed items has their operation's, for it does not end before they are done.
        Call call = nullptr;
        const void* context = nullptr;
    };

    // Does what is left of a share, from its front if it is the thread's own; returns the number of items.
    static int work_on(Share& share, bool is_own);
    void work_until_empty(std::size_t index);
    void worker(std::size_t index);

    std::vector<Share> shares_;

    alignas(64) std::atomic<int> finished_{0};

    alignas(64) std::atomic<int> num_sleeping_{0};
    std::atomic<bool> stopping_{false};
    bool is_alone_;
    uint64_t num_opened_ = 0;  // under mutex_
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
};

}  // namespace kvist
