#include "attention_layout.h"

#include "operations.h"

#include <algorithm>
#include <tuple>

namespace kvist {
namespace {

constexpr int64_t kStateFloats = 1 << 20;  // 4 MB
constexpr int kMinItemsPerThread = 4;
constexpr int kFewQueries = 24;  // a row with more of them gains little from sharing keys with others

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

AttentionLayout::AttentionLayout(const Plan& plan, const AttentionShape& shape, bool writes)
    : num_kv_heads_(shape.num_kv_heads), group_(shape.num_q_heads / shape.num_kv_heads), head_dim_(shape.head_dim),
      window_(shape.window), block_size_(shape.block_size), num_threads_(plan.num_threads()), writes_(writes) {
    items.reserve(plan.max_tokens + plan.max_rows * num_kv_heads_ + 4096);
    written.reserve(plan.max_tokens);
    merges.reserve(kMinItemsPerThread * num_threads_ * 2);
    shared.reserve(plan.max_rows * num_kv_heads_);
    ranges.reserve(plan.max_rows);
    order_.reserve(plan.max_rows);
    same_blocks_.reserve(plan.max_rows);
    groups_.reserve(plan.max_rows);
    prefix_of_.reserve(plan.max_rows);
    capacity = kStateFloats;
}

void AttentionLayout::prepare(const Step& step) {
    written.clear(), shared.clear(), ranges.clear(), items.clear(), merges.clear();
    used = 0;
    prefix_of_.assign(step.num_rows, Prefix());
    if (window_ == 0 && step.num_rows > 1) {  // a window hides most of what long contexts share
        find_groups(step);
        for (int begin = 0; begin < static_cast<int>(groups_.size()); begin = groups_[begin].end)
            if (groups_[begin].num_blocks > 0) share(step, begin, groups_[begin]);
    }
    auto num_items = [&](int tokens_per_item) {
        int count = 0;
        for (int r = 0; r < step.num_rows; r++) count += ceil_div(step.rows[r].num_tokens, tokens_per_item);
        return count * num_kv_heads_;
    };
    const int enough = kMinItemsPerThread * num_threads_;
    int tokens_per_item = std::max(1, kQueriesPerItem / group_);
    while (tokens_per_item > 16 && num_items(tokens_per_item) < 2 * enough) tokens_per_item = (tokens_per_item + 1) / 2;
    const bool split = num_threads_ > 1 && num_items(tokens_per_item) < 2 * enough;
    for (int r = 0; r < step.num_rows; r++) add_row(step, r, tokens_per_item, split);
    // Equal ones as they came: the heads of a request, which lie together, are read one after another.
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return std::tie(b.cost, a.tokens.row, a.tokens.begin, a.segment, a.kv_head) <
               std::tie(a.cost, b.tokens.row, b.tokens.begin, b.segment, b.kv_head);
    });
}

// Sorts rows of few queries by their block tables, so that those which share blocks are neighbours, and groups neighbours.
void AttentionLayout::find_groups(const Step& step) {
    // Every query of a row must see all keys of the prefix.
    auto num_blocks = [&](int row) { return step.rows[row].start / kSharedKeys * kSharedKeys / block_size_; };
    auto table = [&](int row) { return step.rows[row].block_table; };
    order_.clear();
    for (int r = 0; r < step.num_rows; r++)
        if (step.rows[r].num_tokens * group_ <= kFewQueries && num_blocks(r) > 0) order_.push_back(r);
    std::sort(order_.begin(), order_.end(), [&](int a, int b) {
        return std::lexicographical_compare(table(a), table(a) + num_blocks(a), table(b), table(b) + num_blocks(b));
    });
    const int count = static_cast<int>(order_.size());
    same_blocks_.assign(count, 0);
    for (int i = 1; i < count; i++) {
        const int a = order_[i - 1], b = order_[i], most = std::min(num_blocks(a), num_blocks(b));
        same_blocks_[i] = static_cast<int>(std::mismatch(table(a), table(a) + most, table(b)).first - table(a));
    }
    groups_.assign(count, Group());
    if (count) choose_groups(0, count);
}

// Groups rows [begin, end) of order_ so that the most reads are saved: all of them by what all share, or in two parts, cut
// where neighbours share least. Returns the number of blocks that need not be read again.
int64_t AttentionLayout::choose_groups(int begin, int end) {
    if (end - begin == 1) {
        groups_[begin] = {end, 0};
        return 0;
    }
    const int cut =
        static_cast<int>(std::min_element(same_blocks_.begin() + begin + 1, same_blocks_.begin() + end) - same_blocks_.begin());
    const int blocks_per_tile = std::max(1, kSharedKeys / block_size_);
    const int num_blocks = same_blocks_[cut] / blocks_per_tile * blocks_per_tile;
    const int64_t whole = int64_t{end - begin - 1} * num_blocks;
    const int64_t parts = choose_groups(begin, cut) + choose_groups(cut, end);
    if (parts > whole || whole == 0) return parts;
    groups_[begin] = {end, num_blocks};
    return whole;
}

void AttentionLayout::share(const Step& step, int begin, const Group& group) {
    const int num_keys = group.num_blocks * block_size_ / kSharedKeys * kSharedKeys;
    const int num_segments = ceil_div(num_keys, kSegment);
    int num_queries = 0;
    for (int i = begin; i < group.end; i++) num_queries += step.rows[order_[i]].num_tokens * group_;
    const int64_t segment_floats = attention_state_floats(num_queries, head_dim_);
    if (used + segment_floats * num_segments * num_kv_heads_ > capacity) return;
    int rows_per_item = kQueriesPerItem / kFewQueries * 4;
    while (rows_per_item > 2 && ceil_div(group.end - begin, rows_per_item) * num_segments * num_kv_heads_ < 2 * num_threads_)
        rows_per_item /= 2;
    int query = 0;
    for (int i = begin; i < group.end; i += rows_per_item) {
        const int first_range = static_cast<int>(ranges.size()), end = std::min(i + rows_per_item, group.end);
        const int first_query = query;
        for (int j = i; j < end; j++) {
            const int row = order_[j], num_tokens = step.rows[row].num_tokens;
            ranges.push_back({row, 0, num_tokens});
            prefix_of_[row] = {num_keys, used + attention_state_floats(query, head_dim_), segment_floats,
                               segment_floats * num_segments};
            query += num_tokens * group_;
        }
        for (int head = 0; head < num_kv_heads_; head++)
            for (int s = 0; s < num_segments; s++)
                shared.push_back({head, first_range, end - i, s, num_keys,
                                  used + (int64_t{head} * num_segments + s) * segment_floats +
                                      attention_state_floats(first_query, head_dim_)});
    }
    used += segment_floats * num_segments * num_kv_heads_;
}

void AttentionLayout::add_row(const Step& step, int r, int tokens_per_item, bool split) {
    const StepRow& row = step.rows[r];
    const Prefix& prefix = prefix_of_[r];
    const std::size_t first_item = items.size(), first_merge = merges.size();
    const bool has_one_tile = row.num_tokens <= tokens_per_item && prefix.num_keys == 0;
    for (int begin = 0; begin < row.num_tokens; begin += tokens_per_item) {
        const int end = std::min(begin + tokens_per_item, row.num_tokens);
        const int oldest = window_ > 0 ? std::max(0, row.start + begin - window_ + 1) : prefix.num_keys;
        const int first = oldest / kSegment, num_segments = (row.start + end - 1) / kSegment - first + 1;
        const int64_t cost = int64_t{row.start + end - oldest} * (end - begin);
        for (int head = 0; head < num_kv_heads_; head++) {
            const int64_t states =
                prefix.states + head * prefix.head_floats + attention_state_floats(begin * group_, head_dim_);
            add_item({head, {r, begin, end}, -1, false, prefix.num_keys, states, prefix.segment_floats, 0, cost}, first,
                     num_segments, split);
        }
    }
    if (!writes_) return;
    if (has_one_tile && merges.size() == first_merge) {
        for (std::size_t i = first_item; i < items.size(); i++) items[i].writes = true;
    } else {
        write_first(r, row);
    }
}

// In runs within a block: what two threads write lies in lines of its own.
void AttentionLayout::write_first(int row, const StepRow& tokens) {
    for (int begin = 0, end; begin < tokens.num_tokens; begin = end) {
        end = std::min(tokens.num_tokens, begin + block_size_ - (tokens.start + begin) % block_size_);
        written.push_back({row, begin, end});
    }
}

void AttentionLayout::add_item(Item item, int first_segment, int num_segments, bool split) {
    const int64_t floats = attention_state_floats((item.tokens.end - item.tokens.begin) * group_, head_dim_);
    if (!split || num_segments == 1 || used + floats * num_segments > capacity) {
        items.push_back(item);
        return;
    }
    item.states = used;
    item.cost /= num_segments;
    merges.push_back({item, num_segments, floats});
    for (int s = 0; s < num_segments; s++) {
        item.segment = first_segment + s;
        item.states = used;
        items.push_back(item);
        used += floats;
    }
}

}  // namespace kvist
