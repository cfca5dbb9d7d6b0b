"""Step times with attention as it was before FlashAttention: scores and probabilities go to memory and back."""

from __future__ import annotations

from kvist.costmodel.roofline import RooflineModel
from kvist.costmodel.step_work import StepWork

SCORE_BYTES = 2.0
PASSES = 4.0  # scores written, read by the softmax, probabilities written, read by the product with V


class MaterializedAttention:
    """A roofline model with the traffic of every query-key pair added (Dao et al., FlashAttention, 2022, 2.2)."""

    def __init__(self, model: RooflineModel) -> None:
        self._model = model
        placement = model.placement
        heads = placement.model.num_q_heads / placement.tensor_parallel_size
        bytes_per_pair = PASSES * SCORE_BYTES * heads * placement.model.num_layers
        self._pair_s = bytes_per_pair / (model.efficiency.memory * placement.device.memory_bytes_per_s)

    def predict_s(self, work: StepWork) -> float:
        return self._model.predict_s(work) + self._pair_s * (work.prefill_pairs + work.decode_context_tokens)

    def margin_s(self, work: StepWork) -> float:
        return self._model.margin_s(work)
