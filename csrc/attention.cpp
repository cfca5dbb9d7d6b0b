// Exact attention over block tables, tiled with online softmax (FlashAttention's recurrence): 64 keys and values at a time are
// widened to float once for all query vectors of the call, six of which share the registers while they pass.
//
// A tile of 64 keys and a segment of kSegment keys stand at absolute positions; a segment starts with fresh statistics and
// segments are merged left to right. A query's arithmetic therefore does not depend on chunking, company or threads.
#include "attention_float.h"
#include "attention_int8.h"
#include "attention_matrix.h"

namespace kvist::KVIST_ISA {
namespace {

// Passes keys [begin, end) of one KV head by w.queries, whose statistics go on from what they are. `begin` starts a tile.
// is_fresh: w.out holds nothing yet; afterwards it holds something for those that have seen a key.
template <class Math>
void attend(const AttentionArgs& a, Math& math, const int32_t* block_table, int kv_head, int count, int begin, int end,
            bool is_fresh, Workspace& w) {
    static_assert(Math::kRows <= kLanes);
    if (is_fresh) std::fill_n(w.out, count * a.kv.head_dim, 0.0f);
    for (int first = begin; first < end; first += kTileKeys) {
        const int num_keys = std::min(kTileKeys, end - first);
        math.load_tile(block_table, kv_head, first, num_keys);
        for (int q = 0; q < count; q += Math::kRows) {
            const int rows = std::min(Math::kRows, count - q);
            const int num_seen = Seen(a, w, q, rows).num_keys(first, num_keys);
            if (num_seen <= 0) continue;  // hidden keys change no statistics
            float *scores[Math::kRows], *out[Math::kRows];
            for (int i = 0; i < rows; i++) scores[i] = w.scores[i], out[i] = w.out + (q + i) * a.kv.head_dim;
            math.scores(q, rows, (num_seen + kLanes - 1) / kLanes * kLanes, scores);
            alignas(64) float factor[kLanes] = {};
            softmax_tile(a, w, q, rows, first, num_seen, factor);
            math.values(rows, num_seen, w.scores, factor, out);
        }
    }
}

// Calls fn(count, first) for the query vectors of `tokens`, at most kMaxQueries at a time, laid out in w.queries;
// `first` counts them from the first of all.
template <class Fn>
void each_query_run(const AttentionArgs& a, int kv_head, const TokenRange* tokens, int num_ranges, Workspace& w, Fn fn) {
    const int head_dim = a.kv.head_dim;
    int count = 0, first = 0;
    for (int r = 0; r < num_ranges; r++) {
        const StepRow& row = a.rows[tokens[r].row];
        for (int token = tokens[r].begin; token < tokens[r].end; token++) {
            const int64_t batch_row = row.first_row + token, column = int64_t{kv_head * a.group} * head_dim;
            const float* q = a.q.data + batch_row * a.q.stride + column;
            float* out = a.out.data + batch_row * a.out.stride + column;
            for (int i = 0; i < a.group; i++, q += head_dim, out += head_dim) {
                if (count == kMaxQueries) fn(count, first), first += count, count = 0;
                w.queries[count++] = {row.start + token, q, out};
            }
        }
    }
    if (count) fn(count, first);
}

void start_segment(int i, Workspace& w) {
    w.max[i] = kStart;
    store(w.sums[i], zero());
}

float* state_of(float* states, int query, int head_dim) { return states + attention_state_floats(query, head_dim); }
const float* state_of(const float* states, int query, int head_dim) { return states + attention_state_floats(query, head_dim); }

void save_state(const AttentionArgs& a, int i, float* state, const Workspace& w) {
    state[0] = w.max[i];
    store(state + kLanes, load(w.sums[i]));
    std::copy_n(w.out + i * a.kv.head_dim, a.kv.head_dim, state + 2 * kLanes);
}

// Goes on with a segment that a shared prefix begins.
void load_state(const AttentionArgs& a, int i, const float* state, Workspace& w) {
    w.max[i] = state[0];
    store(w.sums[i], load(state + kLanes));
    std::copy_n(state + 2 * kLanes, a.kv.head_dim, w.out + i * a.kv.head_dim);
}

// What a segment has left of a query.
struct SegmentOf {
    float max;
    const float *sums, *out;
};

// Absorbs a later segment into what is merged so far, in each query's `out`: segment_of(i) of queries [0, count). One that saw none of
// it stays as it is.
template <class SegmentOfQuery>
void merge(const AttentionArgs& a, int count, Workspace& w, SegmentOfQuery segment_of) {
    static_assert(kMaxQueries % kLanes == 0);
    for (int first = 0; first < count; first += kLanes) {
        alignas(64) float maxima[kLanes] = {}, totals[kLanes] = {}, tops[kLanes], before[kLanes], now[kLanes], merged[kLanes];
        const int rows = std::min(kLanes, count - first);
        for (int i = 0; i < rows; i++) {
            const SegmentOf segment = segment_of(first + i);
            maxima[i] = segment.max;
            totals[i] = reduce_add(load(segment.sums));
        }
        const F16 old = load(w.merged_max + first), top = max(load(maxima), old);
        const F16 shrink = exp2_negative(sub(old, top)), segment_shrink = exp2_negative(sub(load(maxima), top));
        store(tops, top), store(before, shrink), store(now, segment_shrink);
        store(merged, add(mul(load(w.total + first), shrink), mul(load(totals), segment_shrink)));
        for (int i = 0; i < rows; i++) {
            if (totals[i] == 0.0f) continue;
            w.merged_max[first + i] = tops[i], w.total[first + i] = merged[i];
            const float* from = segment_of(first + i).out;
            float* out = w.queries[first + i].out;
            for (int d = 0; d < a.kv.head_dim; d += kLanes)
                store(out + d, fma(load(from + d), set1(now[i]), mul(load(out + d), set1(before[i]))));
        }
    }
}

void start_merge(const AttentionArgs& a, int i, float* out, Workspace& w) {
    w.merged_max[i] = kStart;
    w.total[i] = 0.0f;
    std::fill_n(out, a.kv.head_dim, 0.0f);
}

void merge_states(const AttentionArgs& a, int count, int first, const float* states, int64_t segment_floats, int num_segments,
                  Workspace& w) {
    for (int s = 0; s < num_segments; s++)
        merge(a, count, w, [&](int i) {
            const float* state = state_of(states + s * segment_floats, first + i, a.kv.head_dim);
            return SegmentOf{state[0], state + kLanes, state + 2 * kLanes};
        });
}

void divide(const AttentionArgs& a, int i, float* out, const Workspace& w) {
    const float inverse = 1.0f / w.total[i];
    for (int d = 0; d < a.kv.head_dim; d += kLanes) store(out + d, mul(load(out + d), set1(inverse)));
}

// As start_merge, merge and divide, where there is one segment.
void finish_alone(const AttentionArgs& a, int i, Workspace& w) {
    const F16 inverse = set1(1.0f / reduce_add(load(w.sums[i])));
    const float* from = w.out + i * a.kv.head_dim;
    for (int d = 0; d < a.kv.head_dim; d += kLanes)  // merging adds to 0
        store(w.queries[i].out + d, mul(add(load(from + d), zero()), inverse));
}

// Attends to keys of one segment; statistics start afresh or go on from the prefix's.
template <class Math>
void attend_segment(const AttentionArgs& a, Math& math, const int32_t* block_table, int kv_head, int count, int first,
                    int segment, int key_end, const SharedPrefix& prefix, Workspace& w) {
    int oldest = key_end, newest = 0;
    for (int i = 0; i < count; i++) {
        oldest = std::min(oldest, oldest_key(a, w.queries[i].position));
        newest = std::max(newest, w.queries[i].position);
    }
    int begin = std::max(segment * kSegment, oldest / kTileKeys * kTileKeys);
    const bool goes_on = prefix.num_keys > segment * kSegment;
    if (goes_on) begin = prefix.num_keys;
    for (int i = 0; i < count; i++) {
        if (goes_on) load_state(a, i, state_of(prefix.states + segment * prefix.segment_floats, first + i, a.kv.head_dim), w);
        else start_segment(i, w);
    }
    attend(a, math, block_table, kv_head, count, begin, std::min({(segment + 1) * kSegment, key_end, newest + 1}), !goes_on, w);
}

// Calls fn with what computes the products of `count` queries, prepared.
template <class Math, class Fn>
void with_queries(const AttentionArgs& a, int count, const Workspace& w, Fn fn) {
    Math math(a, count);
    // Scores are in powers of two, unless the soft cap wants them as they are.
    for (int i = 0; i < count; i++) math.prepare_query(i, w.queries[i].q, a.softcap > 0 ? a.scale : a.scale * kLog2E);
    fn(math);
}

template <class Fn>
void with_math(const AttentionArgs& a, int count, const Workspace& w, Fn fn) {
    if (a.is_integer) with_queries<IntegerMath>(a, count, w, fn);
    else if (MatrixMath::takes(a.kv)) with_queries<MatrixMath>(a, count, w, fn);
    else with_queries<FloatMath>(a, count, w, fn);
}

}  // namespace

void attention(const AttentionArgs& a, int kv_head, TokenRange tokens, const SharedPrefix& prefix) {
    Workspace& w = scratch<Workspace>();
    const StepRow& row = a.rows[tokens.row];
    each_query_run(a, kv_head, &tokens, 1, w, [&](int count, int first) {
        const int num_whole = prefix.num_keys / kSegment;
        const int begin = std::max(num_whole, oldest_key(a, w.queries[0].position) / kSegment);
        const int last = w.queries[count - 1].position / kSegment;
        const auto attend_to = [&](auto& math, int segment) {
            attend_segment(a, math, row.block_table, kv_head, count, first, segment, (segment + 1) * kSegment, prefix, w);
        };
        if (num_whole == 0 && begin == last) {
            with_math(a, count, w, [&](auto& math) { attend_to(math, last); });
            for (int i = 0; i < count; i++) finish_alone(a, i, w);
            return;
        }
        with_math(a, count, w, [&](auto& math) {  // which has what it needs of the queries: `out` may be in their place
            for (int i = 0; i < count; i++) start_merge(a, i, w.queries[i].out, w);
            merge_states(a, count, first, prefix.states, prefix.segment_floats, num_whole, w);
            for (int segment = begin; segment <= last; segment++) {
                attend_to(math, segment);
                merge(a, count, w, [&](int i) { return SegmentOf{w.max[i], w.sums[i], w.out + i * a.kv.head_dim}; });
            }
        });
        for (int i = 0; i < count; i++) divide(a, i, w.queries[i].out, w);
    });
}

void attention_segment(const AttentionArgs& a, int kv_head, const TokenRange* tokens, int num_ranges, int segment, int key_end,
                       const SharedPrefix& prefix, float* states) {
    Workspace& w = scratch<Workspace>();
    const int32_t* block_table = a.rows[tokens[0].row].block_table;
    each_query_run(a, kv_head, tokens, num_ranges, w, [&](int count, int first) {
        with_math(a, count, w, [&](auto& math) {
            attend_segment(a, math, block_table, kv_head, count, first, segment, key_end, prefix, w);
        });
        for (int i = 0; i < count; i++) save_state(a, i, state_of(states, first + i, a.kv.head_dim), w);
    });
}

void attention_merge(const AttentionArgs& a, int kv_head, TokenRange tokens, const SharedPrefix& prefix, const float* states,
                     int64_t segment_floats, int num_segments) {
    Workspace& w = scratch<Workspace>();
    each_query_run(a, kv_head, &tokens, 1, w, [&](int count, int first) {
        for (int i = 0; i < count; i++) start_merge(a, i, w.queries[i].out, w);
        merge_states(a, count, first, prefix.states, prefix.segment_floats, prefix.num_keys / kSegment, w);
        merge_states(a, count, first, states, segment_floats, num_segments, w);
        for (int i = 0; i < count; i++) divide(a, i, w.queries[i].out, w);
    });
}

}  // namespace kvist::KVIST_ISA
