// Exact attention over block tables, tiled with online softmax (FlashAttention's recurrence): scores of 64 keys at a time live
// in registers and a small buffer, never a whole row. Keys and values are read once for the query heads that share them.
//
// A tile of 64 keys and a segment of kSegment keys stand at absolute positions; a segment starts with fresh statistics and
// segments are merged left to right. A query's arithmetic therefore does not depend on chunking, company or threads.
#include "kernels.h"
#include "simd.h"

#include <algorithm>

namespace kvist::KVIST_ISA {
namespace {

constexpr int kTileKeys = 64;
constexpr int kMaxHeadDim = 256;
constexpr float kMasked = -2e30f;  // finite: exp(kMasked - anything seen) is 0 without a NaN on the way
constexpr float kStart = -1e30f;
#if defined(__AVX512F__)
constexpr int kQueries = 12;  // query vectors that share one pass over K and V
constexpr int kSums = 16;     // vectors of sums that fit in registers
#else
constexpr int kQueries = 6;
constexpr int kSums = 6;
#endif
constexpr int kSubTiles = kTileKeys / kLanes;
static_assert(kQueries <= kLanes);

// Few queries leave a multiply-add waiting for the one before: they take several vectors of keys or values at once.
constexpr int vectors_at_once(int num_queries) { return num_queries * 4 <= kSums ? 4 : num_queries * 2 <= kSums ? 2 : 1; }

template <KVType kType>
inline F16 load_kv(const uint8_t* p, int64_t element) {
    if constexpr (kType == KVType::f32) return load(reinterpret_cast<const float*>(p) + element);
    if constexpr (kType == KVType::f16) return load_half(reinterpret_cast<const uint16_t*>(p) + element);
    if constexpr (kType == KVType::bf16) return load_bfloat(reinterpret_cast<const uint16_t*>(p) + element);
}
constexpr int element_bytes(KVType type) { return type == KVType::f32 ? 4 : 2; }

struct Query {
    int position;
    const float* q;
    float* out;  // [head_dim]: weighted values, not yet divided
    float max, sum;
};

struct Tile {
    alignas(64) float q[kMaxHeadDim][kQueries];  // transposed, scaled
    alignas(64) float s[kQueries][kTileKeys];    // scores, then softmax weights
};

// Scores of sub-tiles [sub, sub + kVectors), whose keys start at k[0], k[1], ...
template <int kNum, int kVectors, KVType kType>
void scores(const AttentionArgs& a, const uint8_t* const* k, Tile& t, int sub) {
    F16 acc[kVectors][kNum];
    for (int c = 0; c < kVectors; c++)
        for (int i = 0; i < kNum; i++) acc[c][i] = zero();
    const int head_dim = a.kv.head_dim;
    const int64_t block_size = a.kv.block_size;
    for (int d = 0; d < head_dim; d++)
        for (int c = 0; c < kVectors; c++) {
            const F16 keys = load_kv<kType>(k[c], d * block_size);
            for (int i = 0; i < kNum; i++) acc[c][i] = fma(set1(t.q[d][i]), keys, acc[c][i]);
        }
    for (int c = 0; c < kVectors; c++)
        for (int i = 0; i < kNum; i++) store(t.s[i] + (sub + c) * kLanes, acc[c][i]);
}

// Soft-caps and masks the scores of one query over one tile.
inline void mask_scores(const AttentionArgs& a, const Query& query, float* s, int first_key, int num_keys) {
    const int last = query.position;
    const int oldest = a.window > 0 ? last - a.window + 1 : 0;
    if (a.softcap > 0) {
        for (int j = 0; j < num_keys; j++) s[j] = a.softcap * std::tanh(s[j] / a.softcap);
    }
    // Keys past num_keys were not computed (or their slots were never written): no query may see them.
    if (last < first_key + kTileKeys - 1 || oldest > first_key || num_keys < kTileKeys) {
        for (int j = 0; j < kTileKeys; j++)
            if (j >= num_keys || first_key + j > last || first_key + j < oldest) s[j] = kMasked;
    }
}

// Softmax statistics of the queries over one tile; leaves the weights in t.s and rescales what the queries have.
template <int kNum>
void softmax_tile(const AttentionArgs& a, Query* queries, Tile& t, int first_key, int num_keys) {
    alignas(64) float alpha[kLanes] = {};  // one exponential serves all queries
    for (int i = 0; i < kNum; i++) {
        float* s = t.s[i];
        mask_scores(a, queries[i], s, first_key, num_keys);
        F16 m = load(s);
        for (int c = 1; c < kSubTiles; c++) m = max(m, load(s + c * kLanes));
        const float top = std::max(queries[i].max, reduce_max(m));
        alpha[i] = queries[i].max - top;
        queries[i].max = top;
    }
    store(alpha, exp(load(alpha)));
    for (int i = 0; i < kNum; i++) {
        Query& query = queries[i];
        float* s = t.s[i];
        F16 total = zero();
        for (int c = 0; c < kSubTiles; c++) {
            const F16 p = exp(sub(load(s + c * kLanes), set1(query.max)));
            total = add(total, p);
            store(s + c * kLanes, p);
        }
        query.sum = query.sum * alpha[i] + reduce_add(total);
        if (alpha[i] != 1.0f)
            for (int d = 0; d < a.kv.head_dim; d += kLanes) store(query.out + d, mul(load(query.out + d), set1(alpha[i])));
    }
}

// Adds the tile's weighted values, dimensions [d, d + 16 * kVectors).
template <int kNum, int kVectors, KVType kType>
void add_values(const AttentionArgs& a, const uint8_t* const* v, const Tile& t, Query* queries, int num_keys, int d) {
    F16 acc[kVectors][kNum];
    for (int c = 0; c < kVectors; c++)
        for (int i = 0; i < kNum; i++) acc[c][i] = load(queries[i].out + d + c * kLanes);
    const int64_t head_dim = a.kv.head_dim;
    for (int first = 0; first < num_keys; first += kLanes) {
        const uint8_t* rows = v[first / kLanes];
        const int count = std::min(kLanes, num_keys - first);
        for (int j = 0; j < count; j++)
            for (int c = 0; c < kVectors; c++) {
                const F16 value = load_kv<kType>(rows, j * head_dim + d + c * kLanes);
                for (int i = 0; i < kNum; i++) acc[c][i] = fma(set1(t.s[i][first + j]), value, acc[c][i]);
            }
    }
    for (int c = 0; c < kVectors; c++)
        for (int i = 0; i < kNum; i++) store(queries[i].out + d + c * kLanes, acc[c][i]);
}

template <int kNum, KVType kType>
void values(const AttentionArgs& a, const uint8_t* const* v, const Tile& t, Query* queries, int num_keys) {
    constexpr int kVectors = vectors_at_once(kNum);
    int d = 0;
    for (; d + kVectors * kLanes <= a.kv.head_dim; d += kVectors * kLanes)
        add_values<kNum, kVectors, kType>(a, v, t, queries, num_keys, d);
    for (; d < a.kv.head_dim; d += kLanes) add_values<kNum, 1, kType>(a, v, t, queries, num_keys, d);
}

template <int kNum, KVType kType>
void attend(const AttentionArgs& a, const StepRow& row, int kv_head, Query* queries, int key_begin, int key_end) {
    Tile t;
    const int head_dim = a.kv.head_dim;
    for (int i = 0; i < kNum; i++) {
        for (int d = 0; d < head_dim; d++) t.q[d][i] = queries[i].q[d] * a.scale;
        for (int d = 0; d < head_dim; d++) queries[i].out[d] = 0.0f;
        queries[i].max = kStart;
        queries[i].sum = 0.0f;
    }
    const int64_t head_bytes = int64_t{head_dim} * a.kv.block_size * element_bytes(kType);
    for (int first = key_begin; first < key_end; first += kTileKeys) {
        const int num_keys = std::min(kTileKeys, key_end - first);
        const uint8_t *k[kSubTiles], *v[kSubTiles];
        for (int sub = 0; sub < kSubTiles; sub++) {
            // A sub-tile past the last key stands in for nothing: its scores are masked.
            const int key = std::min(first + sub * kLanes, (key_end - 1) / kLanes * kLanes);
            const uint8_t* block = a.kv.base + row.block_table[key / a.kv.block_size] * a.kv.block_bytes + kv_head * head_bytes;
            const int slot = key % a.kv.block_size;
            k[sub] = block + a.kv.k_offset + slot * element_bytes(kType);
            v[sub] = block + a.kv.v_offset + int64_t{slot} * head_dim * element_bytes(kType);
        }
        constexpr int kVectors = vectors_at_once(kNum);
        for (int sub = 0; sub * kLanes < num_keys; sub += kVectors) scores<kNum, kVectors, kType>(a, k + sub, t, sub);
        softmax_tile<kNum>(a, queries, t, first, num_keys);
        values<kNum, kType>(a, v, t, queries, num_keys);
    }
}

template <int kNum, KVType kType>
void attend_any(const AttentionArgs& a, const StepRow& row, int head, Query* queries, int count, int begin, int end) {
    if constexpr (kNum > 0) {
        if (count == kNum) return attend<kNum, kType>(a, row, head, queries, begin, end);
        attend_any<kNum - 1, kType>(a, row, head, queries, count, begin, end);
    }
}

void attend_typed(const AttentionArgs& a, const StepRow& row, int head, Query* queries, int count, int begin, int end) {
    switch (a.kv.type) {
        case KVType::f32: return attend_any<kQueries, KVType::f32>(a, row, head, queries, count, begin, end);
        case KVType::f16: return attend_any<kQueries, KVType::f16>(a, row, head, queries, count, begin, end);
        case KVType::bf16: return attend_any<kQueries, KVType::bf16>(a, row, head, queries, count, begin, end);
    }
}

// Calls fn(queries, count) for the query vectors of tokens [token_begin, token_end), kQueries at a time.
template <class Fn>
void each_query_tile(const AttentionArgs& a, const StepRow& row, int kv_head, int token_begin, int token_end, Fn fn) {
    const int total = (token_end - token_begin) * a.group;
    for (int begin = 0; begin < total; begin += kQueries) {
        const int count = std::min(kQueries, total - begin);
        Query queries[kQueries];
        for (int i = 0; i < count; i++) {
            const int token = token_begin + (begin + i) / a.group;
            const int64_t head = kv_head * a.group + (begin + i) % a.group;
            queries[i].position = row.start + token;
            queries[i].q = a.q.data + (row.first_row + token) * a.q.stride + head * a.kv.head_dim;
            queries[i].out = a.out.data + (row.first_row + token) * a.out.stride + head * a.kv.head_dim;
        }
        fn(queries, count, begin);
    }
}

int first_key_of(const AttentionArgs& a, int position) { return a.window > 0 ? std::max(0, position - a.window + 1) : 0; }

// out, (max, sum) of `query` absorb those of a later segment.
void merge(Query& query, const float* out, float segment_max, float segment_sum, int head_dim) {
    const float top = std::max(query.max, segment_max);
    alignas(64) float mine[kLanes], theirs[kLanes];
    store(mine, exp(set1(query.max - top)));
    store(theirs, exp(set1(segment_max - top)));
    query.sum = query.sum * mine[0] + segment_sum * theirs[0];
    query.max = top;
    for (int d = 0; d < head_dim; d += kLanes)
        store(query.out + d, fma(load(out + d), set1(theirs[0]), mul(load(query.out + d), set1(mine[0]))));
}

void divide(Query& query, int head_dim) {
    const float inverse = 1.0f / query.sum;
    for (int d = 0; d < head_dim; d += kLanes) store(query.out + d, mul(load(query.out + d), set1(inverse)));
}

// Range of keys of `segment` that the queries may see.
void segment_keys(const AttentionArgs& a, const Query* queries, int count, int segment, int* begin, int* end) {
    int oldest = first_key_of(a, queries[0].position);
    *begin = std::max(segment * kSegment, oldest / kTileKeys * kTileKeys);
    *end = std::min((segment + 1) * kSegment, queries[count - 1].position + 1);
}

void start_merge(Query& query, int head_dim) {
    query.max = kStart;
    query.sum = 0.0f;
    for (int d = 0; d < head_dim; d++) query.out[d] = 0.0f;
}

}  // namespace

void attention(const AttentionArgs& a, int row_index, int kv_head, int token_begin, int token_end) {
    const StepRow& row = a.rows[row_index];
    const int head_dim = a.kv.head_dim;
    each_query_tile(a, row, kv_head, token_begin, token_end, [&](Query* queries, int count, int) {
        const int first = first_key_of(a, queries[0].position) / kSegment;
        const int last = queries[count - 1].position / kSegment;
        alignas(64) float segment_out[kQueries][kMaxHeadDim];
        Query part[kQueries];
        for (int i = 0; i < count; i++) start_merge(queries[i], head_dim);
        for (int segment = first; segment <= last; segment++) {
            int begin, end;
            segment_keys(a, queries, count, segment, &begin, &end);
            for (int i = 0; i < count; i++) {
                part[i] = queries[i];
                part[i].out = segment_out[i];
            }
            attend_typed(a, row, kv_head, part, count, begin, end);
            for (int i = 0; i < count; i++)
                if (part[i].sum != 0.0f) merge(queries[i], part[i].out, part[i].max, part[i].sum, head_dim);
        }
        for (int i = 0; i < count; i++) divide(queries[i], head_dim);
    });
}

void attention_segment(const AttentionArgs& a, int row_index, int kv_head, int token_begin, int token_end, int segment,
                       float* partial) {
    const StepRow& row = a.rows[row_index];
    const int head_dim = a.kv.head_dim;
    each_query_tile(a, row, kv_head, token_begin, token_end, [&](Query* queries, int count, int first_query) {
        float* slots = partial + partial_floats(first_query, head_dim);
        for (int i = 0; i < count; i++) queries[i].out = slots + i * (2 + head_dim) + 2;
        int begin, end;
        segment_keys(a, queries, count, segment, &begin, &end);
        attend_typed(a, row, kv_head, queries, count, begin, end);
        for (int i = 0; i < count; i++) {
            slots[i * (2 + head_dim)] = queries[i].max;
            slots[i * (2 + head_dim) + 1] = queries[i].sum;
        }
    });
}

void attention_merge(const AttentionArgs& a, int row_index, int kv_head, int token_begin, int token_end, const float* partials,
                     int64_t floats, int num_segments) {
    const StepRow& row = a.rows[row_index];
    const int head_dim = a.kv.head_dim;
    each_query_tile(a, row, kv_head, token_begin, token_end, [&](Query* queries, int count, int first_query) {
        for (int i = 0; i < count; i++) {
            start_merge(queries[i], head_dim);
            for (int s = 0; s < num_segments; s++) {
                const float* slot = partials + s * floats + partial_floats(first_query + i, head_dim);
                if (slot[1] != 0.0f) merge(queries[i], slot + 2, slot[0], slot[1], head_dim);
            }
            divide(queries[i], head_dim);
        }
    });
}

}  // namespace kvist::KVIST_ISA
