// A model's step as a list of operations, recorded once and replayed for any batch. Replaying runs no Python and allocates
// nothing: buffers are sized for `max_tokens` when the plan is built.
#pragma once

#include "kernels.h"
#include "thread_pool.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvist {

// One step's batch, or part of one. Token arrays have num_tokens entries; `source_rows` says which rows of the whole these are.
struct Step {
    const StepRow* rows;
    int num_rows;
    int num_tokens;
    const int32_t* token_ids;
    const int32_t* positions;
    const int32_t* source_rows;  // ascending
    uint8_t* kv_base;
};

struct AttentionLayout;

class Operation {
   public:
    explicit Operation(std::string name) : name(std::move(name)) {}
    virtual ~Operation() = default;
    // Called by one thread before the items of a step run; returns how many there are.
    virtual int prepare(const Step& step) = 0;
    virtual void run(const Step& step, int begin, int end) const = 0;  // items [begin, end)

    const std::string name;
    double seconds = 0;  // summed over the steps replayed with timing on
};

class Plan {
   public:
    Plan(const Kernels& kernels, std::shared_ptr<ThreadPool> pool, int max_tokens, int max_rows);
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    // Buffers added from now on lie in the buffer `id` of `lender`, which must outlive this plan, as far as it has room: what
    // is in them is lost when the other plan replays. Throws if this plan borrows already.
    void borrow(const Plan& lender, int id);

    // Buffers of max_tokens * rows_per_token rows; ids count from 0 for each kind.
    int add_buffer(int width, int rows_per_token = 1);
    int add_quantized(int k, int rows_per_token = 1);
    // In place of buffer `within`, as far as that has room, for who writes it when the other has been read.
    int add_quantized_within(int within, int k);

    RowBuffer buffer(int id, int column = 0) const;
    int width_of_buffer(int id) const { return buffers_.at(id).width; }
    Activations quantized(int id) const;
    std::size_t workspace_bytes() const { return workspace_bytes_; }  // without what is borrowed

    void append(std::unique_ptr<Operation> operation) { operations_.push_back(std::move(operation)); }
    const std::vector<std::unique_ptr<Operation>>& operations() const { return operations_; }

    // Operations appended from now on work on part of a step's rows, which the first of them puts together. Once at most.
    void narrow() { narrowed_from_ = operations_.size(); }

    // Runs operations [first, first + count) of those that there are; `narrowed` is the part that some of them work on.
    void replay(const Step& step, const Step& narrowed, bool timed, std::size_t first = 0, std::size_t count = SIZE_MAX);

    const Kernels& kernels;
    const int max_tokens;
    const int max_rows;
    // How a step's attention is cut into items, per window: layers of one window share it. Not what follows `narrow`.
    std::map<int, std::shared_ptr<AttentionLayout>> attention_layouts;

    std::byte* allocate(std::size_t bytes);  // of this plan's own
    std::byte* allocate_passing(std::size_t bytes);
    float* passing_floats(std::size_t count);
    // One workspace for operations that do not run at the same time.
    float* shared_floats(std::size_t count);
    int num_threads() const { return pool_->num_threads(); }

   private:
    struct Buffer {
        float* data;
        int width, stride;
    };
    struct Room {  // what is left of memory that others have, or had before
        std::byte* begin = nullptr;
        std::size_t bytes = 0;
    };
    Room room_of(int id) const;

    std::shared_ptr<ThreadPool> pool_;
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    std::size_t workspace_bytes_ = 0;
    Room borrowed_;
    float* shared_ = nullptr;
    std::size_t shared_count_ = 0;
    std::vector<Buffer> buffers_;
    std::vector<Activations> quantized_;
    std::vector<std::unique_ptr<Operation>> operations_;
    std::size_t narrowed_from_ = SIZE_MAX;
};

}  // namespace kvist
