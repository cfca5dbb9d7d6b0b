"""Turns a prompt into text: validates, expands `n`, submits, detokenizes, stops at stop strings, counts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from kvist.core.clock import Clock
from kvist.core.request import FinishReason, NewRequest, RequestId, pack_token_ids
from kvist.core.request_events import RequestEvent
from kvist.runtime.engine_client import EngineClient
from kvist.runtime.generation_types import GenerationRequest, GenerationUpdate, ModelInfo, SampleDelta, Usage
from kvist.runtime.merged_streams import MergedStreams
from kvist.runtime.request_checks import check_request, complete_sampling
from kvist.runtime.sample_text import SampleText
from kvist.tokenization.stop_strings import StopStrings
from kvist.tokenization.tokenizer import Tokenizer


class TextGenerator:
    """The one way from token ids to streamed text; the server and the Python API both use it."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, model: ModelInfo, clock: Clock) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.model = model
        self._clock = clock
        self._serials = itertools.count()
        self._callers: dict[RequestId, str] = {}  # of open requests: engine's request id -> caller's

    def validate(self, request: GenerationRequest) -> None:
        """Check lengths and token ids against the model. Raises InvalidRequestError or RequestTooLongError."""
        check_request(request, self.model)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationUpdate, None]:
        """Validate and submit `request`; yield updates, the last one with `is_final`.

        Errors are raised by the first step of the iteration, before any update: those of `validate`, QueueFullError,
        EngineUnavailableError. Closing the iterator at any point aborts all samples. Later failures end a sample with
        finish_reason ERROR. The joined texts do not depend on how tokens arrived.
        """
        self.validate(request)
        new_requests = self._expand(request)
        progress = _Progress(request, self.tokenizer)
        self._callers.update((new.request_id, request.request_id) for new in new_requests)
        try:
            if len(new_requests) == 1:
                async with aclosing(self.client.submit(new_requests[0])) as stream:
                    async for events in stream:
                        update = progress.advance([(0, events)])
                        await self._end_at_stop_strings(update, new_requests)
                        yield update
                        if update.is_final:
                            return
            else:
                async with aclosing(MergedStreams(self.client, new_requests)) as streams:
                    while True:
                        update = progress.advance(await streams.take())
                        await self._end_at_stop_strings(update, new_requests)
                        streams.close([delta.index for delta in update.deltas if delta.finish_reason is not None])
                        yield update
                        if update.is_final:
                            return
        finally:
            for new in new_requests:
                del self._callers[new.request_id]

    async def _end_at_stop_strings(self, update: GenerationUpdate, new_requests: Sequence[NewRequest]) -> None:
        """Tell the engine of samples that are complete for a reason only their text shows."""
        for delta in update.deltas:
            if isinstance(delta.stop_reason, str):
                await self.client.abort(new_requests[delta.index].request_id, reason=FinishReason.STOP)

    async def abort(self, request_id: str) -> None:
        """End all open requests that the caller gave this id, with finish_reason ABORT. No effect if there are none."""
        for engine_id in [engine_id for engine_id, caller in self._callers.items() if caller == request_id]:
            await self.client.abort(engine_id)

    def _expand(self, request: GenerationRequest) -> list[NewRequest]:
        """One NewRequest per sample; all but the first share the first one's prompt blocks."""
        serial = next(self._serials)
        now_s = self._clock.now_s()
        sampling = complete_sampling(request.sampling, len(request.prompt_token_ids), self.model, serial)
        first = NewRequest(
            request_id=RequestId(f"{request.request_id}-{serial}"),
            prompt_token_ids=pack_token_ids(list(request.prompt_token_ids)),
            sampling=sampling,
            arrival_time_s=now_s,
            eos_token_ids=self.model.eos_token_ids,
            domain=request.domain,
            priority=request.priority,
            deadline_s=None if request.deadline_s is None else now_s + request.deadline_s,
            # Scoring the prompt needs its logits, which a cached prefix does not give.
            skip_reading_prefix_cache=request.skip_reading_prefix_cache or sampling.prompt_logprobs is not None,
            ttft_ms=request.ttft_ms,
            tpot_ms=request.tpot_ms,
        )
        unscored = msgspec.structs.replace(sampling, prompt_logprobs=None)
        forks = [
            msgspec.structs.replace(
                first,
                request_id=RequestId(f"{first.request_id}.{index}"),
                sampling=unscored,
                sample_index=index,
                fork_of=first.request_id,
            )
            for index in range(1, request.sampling.n)
        ]
        return [first, *forks]


class _Progress:
    """All samples of one request, and the bill."""

    def __init__(self, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        sampling = request.sampling
        stop = StopStrings(sampling.stop) if sampling.stop else None
        strip = tokenizer.starts_text_after(request.prompt_token_ids)
        self._samples = [
            SampleText(index, sampling, tokenizer, stop, strip_leading_space=strip) for index in range(sampling.n)
        ]
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._num_open = sampling.n
        self._num_output_tokens = 0

    def advance(self, arrivals: Sequence[tuple[int, Sequence[RequestEvent]]]) -> GenerationUpdate:
        """Take the next events of some samples."""
        deltas: list[SampleDelta] = []
        for index, events in arrivals:
            sample = self._samples[index]
            delta = None if sample.is_finished else sample.advance(events)
            if delta is not None:
                deltas.append(delta)
                self._num_output_tokens += len(delta.token_ids)
                self._num_open -= sample.is_finished
        first = self._samples[0]
        usage = Usage(self._num_prompt_tokens, self._num_output_tokens, first.num_cached_tokens)
        scored = first.take_prompt_logprobs()
        return GenerationUpdate(deltas, usage, scored, is_final=self._num_open == 0)
