"""Gathers the updates of one request into its RequestOutput."""

from __future__ import annotations

from kvist.api.outputs import CompletionOutput, RequestMetrics, RequestOutput, token_id_logprobs
from kvist.api.prompts import EncodedPrompt
from kvist.core.errors import EngineUnavailableError
from kvist.core.request import FinishReason
from kvist.runtime.generation_types import GenerationRequest, GenerationUpdate, SampleDelta


class GrowingOutput:
    """`output` is the request so far; the same object grows with each `add`."""

    def __init__(self, request: GenerationRequest, prompt: EncodedPrompt, arrival_time_s: float) -> None:
        sampling = request.sampling
        self.output = RequestOutput(
            request_id=request.request_id,
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids,
            outputs=[CompletionOutput(index=index) for index in range(sampling.n)],
            metrics=RequestMetrics(arrival_time_s=arrival_time_s),
            prompt_logprobs=None if sampling.prompt_logprobs is None else [None],
        )

    def add(self, update: GenerationUpdate, now_s: float) -> None:
        """Take one update. Raises EngineUnavailableError if the engine failed the request."""
        output = self.output
        for delta in update.deltas:
            self._add_delta(output.outputs[delta.index], delta)
            if delta.token_ids and output.metrics.first_token_time_s is None:
                output.metrics.first_token_time_s = now_s
        if output.prompt_logprobs is not None and update.prompt_logprobs is not None:
            output.prompt_logprobs += [token_id_logprobs(position) for position in update.prompt_logprobs]
        output.num_cached_tokens = update.usage.cached_tokens
        if update.is_final:
            output.finished = True
            output.metrics.finished_time_s = now_s

    @staticmethod
    def _add_delta(sample: CompletionOutput, delta: SampleDelta) -> None:
        if delta.finish_reason is FinishReason.ERROR:
            raise EngineUnavailableError(f"the request failed: {delta.error}")
        sample.text += delta.text
        sample.token_ids += delta.token_ids
        if delta.logprobs is not None:
            sample.logprobs = (sample.logprobs or []) + [token_id_logprobs(position) for position in delta.logprobs]
            sample.cumulative_logprob = (sample.cumulative_logprob or 0.0) + sum(
                position.chosen.logprob for position in delta.logprobs
            )
        if delta.finish_reason is not None:
            sample.finish_reason = delta.finish_reason.value
            sample.stop_reason = delta.stop_reason
