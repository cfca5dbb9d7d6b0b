// Threads for one step at a time. Work is cut into small items that threads take one by one, so that a thread whose core is
// taken away costs at most one item; threads spin briefly between the operations of a step, then sleep.
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

    // Calls fn(item) once for each item in [0, num_items), on any thread, in no order; returns when all are done.
    template <class Fn>
    void run(int num_items, const Fn& fn) {
        run_erased(num_items, [](const void* f, int item) { (*static_cast<const Fn*>(f))(item); }, &fn);
    }

   private:
    using Call = void (*)(const void*, int);

    void run_erased(int num_items, Call call, const void* context);
    void stop();
    void work_until_empty();
    void worker();

    // Epoch in the upper half, unclaimed items in the lower. An item claimed keeps the epoch from ending, so the task's
    // fields are stable while it runs.
    std::atomic<uint64_t> unclaimed_{0};
    std::atomic<int> finished_{0};
    Call call_ = nullptr;
    const void* context_ = nullptr;
    int num_items_ = 0;

    std::atomic<int> num_sleeping_{0};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
};

}  // namespace kvist
