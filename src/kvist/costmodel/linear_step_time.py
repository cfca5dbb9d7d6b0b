"""A step-time model with given coefficients: a plain linear function of the work."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.costmodel.step_work import StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStepTime:
    """Seconds = per_step + the counts of `StepWork`, each times its coefficient.

    The shape of DistServe's fitted model (OSDI'24): a constant, tokens, attention pairs of prompts, keys of decodes.
    """

    per_step_s: float = 0.0
    per_token_s: float = 0.0
    per_sequence_s: float = 0.0
    per_decode_key_s: float = 0.0
    per_prefill_pair_s: float = 0.0

    def predict_s(self, work: StepWork) -> float:
        return (
            self.per_step_s
            + self.per_token_s * work.num_tokens
            + self.per_sequence_s * work.num_sequences
            + self.per_decode_key_s * work.decode_context_tokens
            + self.per_prefill_pair_s * work.prefill_pairs
        )

    def margin_s(self, work: StepWork) -> float:
        return 0.0
