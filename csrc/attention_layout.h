// How one step's attention is cut into items. Computed once per step and window; knows block tables, no bytes.
#pragma once

#include "plan.h"

#include <vector>

namespace kvist {

struct AttentionShape;

struct AttentionLayout {
    struct Shared {  // one segment of a prefix, for rows that share it
        int kv_head, first_range, num_ranges, segment, num_keys;
        int64_t states;  // offset of the ranges' states
    };
    struct Item {
        int kv_head;
        TokenRange tokens;
        int segment;  // -1: all of them
        bool writes;  // rotates and writes its own tokens first, for nobody else reads them
        int num_prefix_keys;
        int64_t prefix, prefix_segment_floats;  // the tokens' states of the prefix
        int64_t states;                         // where one segment's go
        int64_t cost;
    };
    struct Merge {
        Item of;
        int num_segments;
        int64_t segment_floats;
    };
    struct Group {  // neighbours in `order` whose contexts begin with the same num_blocks blocks
        int end, num_blocks;
    };

    std::vector<TokenRange> written;  // rotated and written before any item runs; each lies in one block
    std::vector<Shared> shared;
    std::vector<TokenRange> ranges;
    std::vector<Item> items;
    std::vector<Merge> merges;
    float* states = nullptr;
    int64_t capacity = 0, used = 0;  // floats of `states`

    // writes: k and v are not in their blocks yet.
    AttentionLayout(const Plan& plan, const AttentionShape& shape, bool writes);
    void prepare(const Step& step);

   private:
    void find_groups(const Step& step);
    int64_t choose_groups(int begin, int end);
    void share(const Step& step, int begin, const Group& group);
    void add_row(const Step& step, int row, int tokens_per_item, bool split);
    void write_first(int row, const StepRow& tokens);
    void add_item(Item item, int first_segment, int num_segments, bool split);

    const int num_kv_heads_, group_, head_dim_, window_, block_size_, num_threads_;
    const bool writes_;
    std::vector<int> order_,
        same_blocks_;            // rows by block table; blocks that a row of `order_` has in common with the one before
    std::vector<Group> groups_;  // by the first row's place in order_
    struct Prefix {
        int num_keys = 0;
        int64_t states = 0, segment_floats = 0, head_floats = 0;
    };
    std::vector<Prefix> prefix_of_;  // by row
};

}  // namespace kvist
