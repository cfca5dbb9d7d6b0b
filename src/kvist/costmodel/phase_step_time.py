"""A step-time model with coefficients of its own for each phase, in the form that DistServe (OSDI'24) fits."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.costmodel.step_work import StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFit:
    """Milliseconds = a + b * (sum of prompt lengths) + c * (sum of their squares)."""

    a: float
    b: float
    c: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFit:
    """Milliseconds = a + b * (sum of contexts) + c * (requests in the batch)."""

    a: float
    b: float
    c: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStepTime:
    """large_decode: for batches of `large_batch` requests and more.

    num_stages: a pipeline's; with several, each adds `stage_prefill_ms` per stage to a step with prompts, so that the
    time in one stage is T / stages + stage_prefill_ms * stages. A step with both phases pays the constant of prompts.
    """

    prefill: PrefillFit
    decode: DecodeFit
    large_decode: DecodeFit
    large_batch: int = 95
    num_stages: int = 1
    stage_prefill_ms: float = 1.0

    def predict_s(self, work: StepWork) -> float:
        num_prefill_tokens = work.num_tokens
        milliseconds = 0.0
        if work.decode_context_tokens or not work.prefill_pairs:
            # With prompts beside them, sequences that read keys as single tokens are what is no prompt's.
            batch = work.num_sequences if not work.prefill_pairs else max(0, work.num_sampled - 1)
            fit = self.large_decode if batch >= self.large_batch else self.decode
            constant = 0.0 if work.prefill_pairs else fit.a
            milliseconds += constant + fit.b * work.decode_context_tokens + fit.c * batch
            num_prefill_tokens -= batch
        if work.prefill_pairs:
            # Pairs of a whole prompt of n tokens are n (n + 1) / 2: about half of its square.
            milliseconds += (
                self.prefill.a + self.prefill.b * num_prefill_tokens + 2.0 * self.prefill.c * work.prefill_pairs
            )
            if self.num_stages > 1:
                milliseconds += self.stage_prefill_ms * self.num_stages**2
        return milliseconds / 1e3

    def margin_s(self, work: StepWork) -> float:
        return 0.0
