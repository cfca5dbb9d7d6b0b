// What samplers ask of a row of logits. Equal logits are ordered by token id, lowest first. Sums run in lanes of sixteen over
// pieces of fixed size, so that every instruction set gives the same bits.
#include "kernels.h"
#include "simd.h"

#include <algorithm>

namespace kvist::KVIST_ISA {

BestLogit best_logit(const float* logits, int n) {
    constexpr int kRun = 256;  // that are looked through again for the largest
    float largest = -INFINITY, rest = 0.0f;
    F16 poison = zero();  // 0 * x is 0, or NaN for what is not finite
    int first = 0;        // of the run that holds it
    for (int run = 0; run < n; run += kRun) {
        const int end = std::min(run + kRun, n);
        F16 top = set1(-INFINITY);
        int i = run;
        for (; i + kLanes <= end; i += kLanes) {
            const F16 x = load(logits + i);
            top = max(top, x);
            poison = fma(x, zero(), poison);
        }
        float top_of_run = reduce_max(top);
        for (; i < end; i++) {
            top_of_run = std::max(top_of_run, logits[i]);
            rest += 0.0f * logits[i];
        }
        if (!(top_of_run > largest)) continue;
        largest = top_of_run;
        first = run;
    }
    if (rest + reduce_add(poison) != 0.0f) return {0.0f, -1};
    int id = first;
    while (logits[id] != largest) id++;
    return {largest, id};
}

void softcap(float* logits, int n, float cap) {
    for (int i = 0; i < n; i++) logits[i] = cap * std::tanh(logits[i] / cap);
}

namespace {

constexpr int kPiece = 1024;

// e^((logit - largest) / temperature) of the sixteen logits from i on; 0 below `least` and past the n-th.
F16 weights(const float* logits, int n, int i, float largest, const WeightArgs& a) {
    float last[kLanes];
    const float* from = logits + i;
    if (n - i < kLanes) {
        for (int k = 0; k < kLanes; k++) last[k] = i + k < n ? from[k] : -INFINITY;
        from = last;
    }
    const F16 w = exp(div(sub(load(from), set1(largest)), set1(a.temperature)));
    return select_lt(w, set1(a.least), zero(), w);
}

double piece_sum(const float* logits, int n, int begin, float largest, const WeightArgs& a) {
    F16 sum = zero();
    for (int i = begin; i < std::min(begin + kPiece, n); i += kLanes) sum = add(sum, weights(logits, n, i, largest, a));
    return static_cast<double>(reduce_add(sum));
}

}  // namespace

double weight_sum(const float* logits, int n, float largest, const WeightArgs& a) {
    double total = 0;
    for (int begin = 0; begin < n; begin += kPiece) total += piece_sum(logits, n, begin, largest, a);
    return total;
}

int32_t draw(const float* logits, int n, float largest, const WeightArgs& a, double u) {
    double left = u * weight_sum(logits, n, largest, a);
    int32_t last = -1;  // that has a weight: what rounding leaves over falls to it
    for (int begin = 0; begin < n; begin += kPiece) {
        const double sum = piece_sum(logits, n, begin, largest, a);
        if (sum <= left && begin + kPiece < n) {
            left -= sum;
            continue;
        }
        for (int i = begin; i < std::min(begin + kPiece, n); i += kLanes) {
            float w[kLanes];
            store(w, weights(logits, n, i, largest, a));
            for (int k = 0; k < kLanes; k++) {
                if (w[k] == 0.0f) continue;
                last = i + k;
                left -= static_cast<double>(w[k]);
                if (left < 0) return last;
            }
        }
        if (last >= 0) return last;
    }
    return last;
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
