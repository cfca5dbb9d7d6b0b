"""An EngineClient whose every request samples the tokens of a script, a given number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from kvist.core.errors import KvistError
from kvist.core.request import FinishReason, NewRequest, RequestId
from kvist.core.request_events import Finished, PromptScored, Queued, RequestEvent, Scheduled, TokensSampled
from kvist.core.step_result import TokenLogprobs


def logprobs_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(
        token_id=token_id, logprob=-0.5, rank=1, top_token_ids=[token_id, 0], top_logprobs=[-0.5, -2.0]
    )


class ScriptedEngineClient:
    """Only what TextGenerator touches. `submitted` and `aborted` tell what reached the engine.

    sizes: how many tokens each list of events holds; the last size repeats. refusal: raised for every request.
    """

    def __init__(
        self, script: Sequence[int], *, sizes: Sequence[int] = (1,), refusal: KvistError | None = None
    ) -> None:
        self.submitted: list[NewRequest] = []
        self.aborted: list[RequestId] = []
        self.ended: dict[RequestId, FinishReason] = {}
        self._script = script
        self._sizes = sizes
        self._refusal = refusal

    async def abort(self, request_id: RequestId, *, reason: FinishReason = FinishReason.ABORT) -> None:
        self.ended[request_id] = reason

    async def submit(self, request: NewRequest) -> AsyncGenerator[list[RequestEvent], None]:
        if self._refusal is not None:
            raise self._refusal
        self.submitted.append(request)
        is_finished = False
        try:
            for events in self._events(request):
                is_finished = isinstance(events[-1], Finished)
                yield events
                await asyncio.sleep(0)
        finally:
            if not is_finished:
                self.aborted.append(request.request_id)

    def _events(self, request: NewRequest) -> list[list[RequestEvent]]:
        id_, sampling = request.request_id, request.sampling
        num_prompt_tokens = len(request.prompt_token_ids) // 4
        batches: list[list[RequestEvent]] = [[Queued(id_, 0.0, num_prompt_tokens)], [Scheduled(id_, 0.0, 3)]]
        if sampling.prompt_logprobs is not None:
            batches.append([PromptScored(id_, [logprobs_of(5) for _ in range(num_prompt_tokens - 1)])])
        tokens, reason, stop_token_id = self._output(request)
        sizes = list(self._sizes)
        start = 0
        while start < len(tokens):
            size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            some = tokens[start : start + size]
            scored = None if sampling.logprobs is None else [logprobs_of(token) for token in some]
            batches.append([TokensSampled(id_, 0.0, list(some), scored)] if some else [Queued(id_, 0.0, 0)])
            start += size
        batches[-1].append(Finished(id_, 0.0, reason, num_prompt_tokens, len(tokens), 3, 0, stop_token_id))
        return batches

    def _output(self, request: NewRequest) -> tuple[Sequence[int], FinishReason, int | None]:
        limit = request.sampling.max_tokens or 0
        stops = (*request.sampling.stop_token_ids, *(() if request.sampling.ignore_eos else request.eos_token_ids))
        for position, token in enumerate(self._script[:limit]):
            if token in stops:
                return self._script[: position + 1], FinishReason.STOP, token
        return self._script[:limit], FinishReason.LENGTH, None
