// The kernel table of the instruction set that this file is compiled for (once per set).
#include "kernels.h"

namespace kvist {
namespace KVIST_ISA {
void linear(const LinearArgs&, int, int, int, int);
void gated_linear(const GatedArgs&, int, int, int, int);
void linear_dense(const PackedMatrix&, RowBuffer, RowBuffer, bool, int, int, int);
void quantize(RowBuffer, Activations, int, int);
void rms_norm(RowBuffer, const float*, float, int, int, RowBuffer, int, int);
void rms_norm_quantize(RowBuffer, const float*, float, Activations, int, int);
void gated(RowBuffer, RowBuffer, Activation, bool, int, RowBuffer, int, int);
void gated_quantize(RowBuffer, RowBuffer, Activation, Activations, int, int);
void rope(RowBuffer, const RopeArgs&, int, int, int);
void quantize_groups(RowBuffer, Activations, int, int, int, int);
void write_kv(const KVLayout&, const StepRow&, RowBuffer, RowBuffer, int, int, int, int);
void attention(const AttentionArgs&, int, TokenRange, const SharedPrefix&);
void attention_segment(const AttentionArgs&, int, const TokenRange*, int, int, int, const SharedPrefix&, float*);
void attention_merge(const AttentionArgs&, int, TokenRange, const SharedPrefix&, const float*, int64_t, int);
void embed(const PackedMatrix&, const int32_t*, float, RowBuffer, int, int);
void add(RowBuffer, RowBuffer, int, int, int);
bool is_finite(const float*, int64_t);
void softcap(float*, int, float);
BestLogit best_logit(const float*, int);
double weight_sum(const float*, int, float, const WeightArgs&);
int32_t draw(const float*, int, float, const WeightArgs&, double);
void top_logits(const float*, int, int, int32_t*);
const Ceilings& ceilings();
const Baselines& baselines();
}  // namespace KVIST_ISA

#define KVIST_NAME2(x) #x
#define KVIST_NAME(x) KVIST_NAME2(x)

namespace KVIST_ISA {
const Kernels& table() {
    static const Kernels kernels = {
        KVIST_NAME(KVIST_ISA),
#if defined(KVIST_MATRIX_UNIT)
        true,
#else
        false,
#endif
        linear,
        gated_linear,
        linear_dense,
        quantize,
        rms_norm,
        rms_norm_quantize,
        quantize_groups,
        gated,
        gated_quantize,
        rope,
        write_kv,
        attention,
        attention_segment,
        attention_merge,
        embed,
        add,
        is_finite,
        softcap,
        best_logit,
        weight_sum,
        draw,
        top_logits,
        ceilings,
        baselines,
    };
    return kernels;
}
}  // namespace KVIST_ISA
}  // namespace kvist
