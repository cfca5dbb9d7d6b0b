// Rounds K and V of a step's tokens into their blocks. Layouts: see KVLayout.
#include "kernels.h"
#include "simd.h"

#include <algorithm>

namespace kvist::KVIST_ISA {

bool is_finite(const float* x, int64_t width);

namespace {

// Convert(from, to): sixteen floats into the pool's type.
template <class Element, class Convert>
void write_plain(const KVLayout& kv, uint8_t* keys, uint8_t* values, int slot, const float* key, const float* value,
                 Convert convert) {
    auto* k = reinterpret_cast<Element*>(keys) + slot;
    auto* v = reinterpret_cast<Element*>(values) + int64_t{slot} * kv.head_dim;
    for (int d = 0; d < kv.head_dim; d += kLanes) {
        Element column[kLanes];
        convert(key + d, column);
        for (int i = 0; i < kLanes; i++) k[int64_t{d + i} * kv.block_size] = column[i];
        convert(value + d, v + d);
    }
}

constexpr float kSmallestScaled = 1e-30f;  // vectors below it become zeros: a reciprocal would overflow

// int8 numbers of one vector; returns their scale. What is not finite leaves a scale of NaN.
float scale_and_round(const float* x, int head_dim, int8_t* rounded) {
    F16 top = zero();
    for (int d = 0; d < head_dim; d += kLanes) top = max(top, abs(load(x + d)));
    const bool finite = is_finite(x, head_dim);
    const float largest = reduce_max(top), inverse = finite && largest > kSmallestScaled ? 127.0f / largest : 0.0f;
    for (int d = 0; d < head_dim; d += kLanes)
        store_int8(rounded + d, finite ? round(mul(load(x + d), set1(inverse))) : zero());
    return finite ? largest / 127.0f : NAN;
}

constexpr int kMaxHeadDim = 256;

void write_scaled(const KVLayout& kv, uint8_t* keys, uint8_t* values, int slot, const float* key, const float* value) {
    int8_t rounded[kMaxHeadDim];
    const int64_t scales = int64_t{kv.head_dim} * kv.block_size;
    reinterpret_cast<float*>(keys + scales)[slot] = scale_and_round(key, kv.head_dim, rounded);
    for (int d = 0; d < kv.head_dim; d += 4) std::memcpy(keys + int64_t{d} * kv.block_size + 4 * slot, rounded + d, 4);
    reinterpret_cast<float*>(values + scales)[slot] = scale_and_round(value, kv.head_dim, rounded);
    auto* v = reinterpret_cast<int8_t*>(values) + int64_t{slot / 4} * 4 * kv.head_dim + slot % 4;
    for (int d = 0; d < kv.head_dim; d++) v[4 * d] = rounded[d];
}

void round_all(const KVLayout& kv, const float* x, uint16_t* rounded) {
    for (int d = 0; d < kv.head_dim; d += kLanes) store_bfloat(rounded + d, load(x + d));
}

// The values of one slot, or of two that lie together if `next` is not null.
void write_value_pairs(const KVLayout& kv, uint8_t* values, int slot, const float* value, const float* next) {
    auto* v = reinterpret_cast<uint16_t*>(values) + int64_t{slot / 2} * 2 * kv.head_dim + slot % 2;
    if (next) {
        for (int d = 0; d < kv.head_dim; d += kLanes) store_bfloat_pairs(v + 2 * d, load(value + d), load(next + d));
        return;
    }
    uint16_t rounded[kMaxHeadDim];
    round_all(kv, value, rounded);
    for (int d = 0; d < kv.head_dim; d++) v[2 * d] = rounded[d];
}

// Tokens [token, end) of one head, as far as the block of the first goes; returns the next.
int write_pairs(const KVLayout& kv, const StepRow& row, RowBuffer k, RowBuffer v, int head, int token, int end) {
    const int position = row.start + token, slot = position % kv.block_size;
    const int64_t column = int64_t{head} * kv.head_dim;
    const float* key = k.data + (row.first_row + token) * k.stride + column;
    const float* value = v.data + (row.first_row + token) * v.stride + column;
    uint8_t* keys = kv.keys(row.block_table, position, head);
    uint8_t* values = kv.values(row.block_table, position, head);
    const int count = std::min(end - token, kv.block_size - slot);
    for (int i = 0; i < count; i++) {
        uint16_t rounded[kMaxHeadDim];
        round_all(kv, key + i * k.stride, rounded);
        uint8_t* to = keys + 4 * (slot + i);
        for (int d = 0; d < kv.head_dim; d += 2) std::memcpy(to + 2 * int64_t{d} * kv.block_size, rounded + d, 4);
    }
    for (int i = 0; i < count;) {
        const float* x = value + i * v.stride;
        const bool is_pair = (slot + i) % 2 == 0 && i + 1 < count;
        write_value_pairs(kv, values, slot + i, x, is_pair ? x + v.stride : nullptr);
        i += is_pair ? 2 : 1;
    }
    return token + count;
}

}  // namespace

void write_kv(const KVLayout& kv, const StepRow& row, RowBuffer k, RowBuffer v, int head_begin, int head_end, int begin,
              int end) {
    if (kv.type == KVType::bf16) {
        for (int token = begin, next = end; token < end; token = next)
            for (int head = head_begin; head < head_end; head++) next = write_pairs(kv, row, k, v, head, token, end);
        return;
    }
    for (int token = begin; token < end; token++) {
        const int position = row.start + token, slot = position % kv.block_size;
        for (int head = head_begin; head < head_end; head++) {
            const int64_t column = int64_t{head} * kv.head_dim;
            const float* key = k.data + (row.first_row + token) * k.stride + column;
            const float* value = v.data + (row.first_row + token) * v.stride + column;
            uint8_t* keys = kv.keys(row.block_table, position, head);
            uint8_t* values = kv.values(row.block_table, position, head);
            switch (kv.type) {
                case KVType::f32:
                    write_plain<float>(kv, keys, values, slot, key, value,
                                       [](const float* from, float* to) { store(to, load(from)); });
                    break;
                case KVType::f16:
                    write_plain<uint16_t>(kv, keys, values, slot, key, value,
                                          [](const float* from, uint16_t* to) { store_half(to, load(from)); });
                    break;
                case KVType::bf16: break;  // above
                case KVType::int8: write_scaled(kv, keys, values, slot, key, value); break;
            }
        }
    }
}

}  // namespace kvist::KVIST_ISA
