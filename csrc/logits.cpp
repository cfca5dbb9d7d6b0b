// What samplers ask of a row of logits. Equal logits are ordered by token id, lowest first. Sums run in lanes of sixteen over
// pieces of fixed size, so that every instruction set gives the same bits.
#include "kernels.h"
#include "simd.h"

#include <algorithm>

namespace kvist::KVIST_ISA {

BestLogit best_logit(const float* logits, int n) {
    F16 top = set1(-INFINITY), poison = zero();  // 0 * x is 0, or NaN for what is not finite
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const F16 x = load(logits + i);
        top = max(top, x);
        poison = fma(x, zero(), poison);
    }
    float largest = reduce_max(top), rest = reduce_add(poison);
    for (; i < n; i++) {
        largest = std::max(largest, logits[i]);
        rest += 0.0f * logits[i];
    }
    if (rest != 0.0f) return {0.0f, -1};
    int id = 0;
    while (logits[id] != largest) id++;
    return {largest, id};
}

void softcap(float* logits, int n, float cap) {
    for (int i = 0; i < n; i++) logits[i] = cap * std::tanh(logits[i] / cap);
}

double log_sum_exp(const float* logits, int n) {
    constexpr int kPiece = 1024;
    float largest = logits[0];
    for (int i = 1; i < n; i++) largest = std::max(largest, logits[i]);
    double total = 0;
    for (int begin = 0; begin < n; begin += kPiece) {
        F16 sum = zero();
        for (int i = begin; i < std::min(begin + kPiece, n); i += kLanes) {
            float rest[kLanes];
            if (n - i < kLanes)
                for (int k = 0; k < kLanes; k++) rest[k] = i + k < n ? logits[i + k] : -INFINITY;
            sum = add(sum, exp(sub(load(n - i < kLanes ? rest : logits + i), set1(largest))));
        }
        total += static_cast<double>(reduce_add(sum));
    }
    return static_cast<double>(largest) + std::log(total);
}

// A heap of the `count` best so far, the worst of them on top.
void top_logits(const float* logits, int n, int count, int32_t* ids) {
    const auto better = [logits](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    for (int i = 0; i < count; i++) ids[i] = i;
    std::make_heap(ids, ids + count, better);
    auto offer = [&](int32_t id) {
        if (!(logits[id] > logits[ids[0]])) return;  // of equals the ones before stay
        std::pop_heap(ids, ids + count, better);
        ids[count - 1] = id;
        std::push_heap(ids, ids + count, better);
    };
    int i = count;
    for (; i + kLanes <= n; i += kLanes) {
        if (!(reduce_max(load(logits + i)) > logits[ids[0]])) continue;
        for (int k = 0; k < kLanes; k++) offer(i + k);
    }
    for (; i < n; i++) offer(i);
    std::sort_heap(ids, ids + count, better);
}

}  // namespace kvist::KVIST_ISA
