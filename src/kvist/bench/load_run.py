"""Replays a load through one engine in this thread, in real time, and keeps all that happened.

No server, no transport, no detokenizer: what is measured is scheduler, cache and executor. A request's times count from
when it was due, so an engine that is busy does not make its clients patient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from kvist.core.clock import Clock
from kvist.core.errors import KvistError
from kvist.core.request import NewRequest, RequestId, pack_token_ids
from kvist.core.request_events import (
    EventBatch,
    Finished,
    Preempted,
    RequestEvent,
    Scheduled,
    StepSummary,
    TokensSampled,
)
from kvist.core.sampling_params import SamplingParams
from kvist.costmodel.step_work import StepWork, work_of_plan
from kvist.engine.engine_core import EngineCore
from kvist.metrics.percentiles import percentile as percentile_of_rising
from kvist.metrics.served_request import NO_TARGETS, Targets
from kvist.workload.load_progress import LoadProgress
from kvist.workload.trace_record import TraceRecord

LONGEST_SLEEP_S = 0.05


@dataclass(slots=True, eq=False)
class RequestRun:
    """One sample of one request. Times in seconds after the start of the load; arrival_s: when it was due."""

    index: int
    sample_index: int
    arrival_s: float
    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    finished_s: float | None = None
    targets: Targets = NO_TARGETS

    @property
    def ttft_s(self) -> float | None:
        return self.token_times_s[0] - self.arrival_s if self.token_times_s else None

    @property
    def inter_token_s(self) -> list[float]:
        """Gaps between tokens; tokens of one step come at one time."""
        return [later - earlier for earlier, later in pairwise(self.token_times_s)]


@dataclass(slots=True)
class LoadRun:
    """What came of a load: requests by index, then sample; steps in order, and the work of each.

    cpu_s: of this process, all threads: beside other work on the machine it says more than the time that passed.
    client_cpu_s: of it, what a client would do: making prompts, noting what came.
    """

    requests: list[RequestRun]
    steps: list[StepSummary]
    works: list[StepWork]
    elapsed_s: float
    cpu_s: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def num_output_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_cached_tokens(self) -> int:
        return sum(request.num_cached_tokens for request in self.requests)

    @property
    def hit_share(self) -> float:
        """Prompt tokens read from the cache, as a share of all."""
        return self.num_cached_tokens / max(self.num_prompt_tokens, 1)

    @property
    def padding_share(self) -> float:
        """Tokens computed for nothing, as a share of all that were computed."""
        padding = sum(step.num_padding_tokens for step in self.steps)
        return padding / max(padding + sum(step.num_scheduled_tokens for step in self.steps), 1)

    @property
    def outputs(self) -> list[tuple[int, ...]]:
        return [tuple(request.token_ids) for request in self.requests]

    @property
    def requests_per_s(self) -> float:
        """Loads' requests, not samples of them."""
        return len({request.index for request in self.requests}) / self.elapsed_s

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.elapsed_s

    def ttfts_s(self) -> list[float]:
        return [request.ttft_s for request in self.requests if request.ttft_s is not None]

    def inter_token_s(self) -> list[float]:
        return [gap for request in self.requests for gap in request.inter_token_s]


OnStep = Callable[
    [StepSummary, Mapping[RequestId, RequestRun]], None
]  # after a step; with requests that have not ended


TargetsOf = Callable[[TraceRecord, int], Targets]  # of a request and its number of prompt tokens


class Prompts(Protocol):
    """Where the prompts of a load come from, such as a TextSource."""

    def prompt(self, record: TraceRecord, answers: Callable[[int], Sequence[int]]) -> Sequence[int]:
        """The record's prompt. answers: index of an earlier request -> the tokens that it was answered with."""
        ...


class LoadRunner:
    """Plays one load through one engine. See `run`.

    name: makes request ids unlike those of other runs over the same executor. n samples of a request share its
    blocks unless `shares_samples` is False.
    """

    def __init__(
        self,
        core: EngineCore,
        clock: Clock,
        texts: Prompts,
        *,
        name: str,
        temperature: float = 0.0,
        shares_samples: bool = True,
        on_step: OnStep | None = None,
    ) -> None:
        self._core = core
        self._clock = clock
        self._texts = texts
        self._name = name
        self._temperature = temperature
        self._shares_samples = shares_samples
        self._on_step = on_step
        self._open: dict[RequestId, RequestRun] = {}
        self._requests: list[RequestRun] = []
        self._num_open_samples: dict[int, int] = {}
        self._steps: list[StepSummary] = []
        self._works: list[StepWork] = []
        self._start_s = 0.0
        self._client_cpu_s = 0.0
        self._targets_of: TargetsOf = lambda record, num_prompt_tokens: NO_TARGETS

    @property
    def request_ids(self) -> list[RequestId]:
        """All that were submitted."""
        return [self._id(request.index, request.sample_index) for request in self._requests]

    def run(self, records: Sequence[TraceRecord], targets_of: TargetsOf | None = None) -> LoadRun:
        """Replay `records` and return when all have ended. Raises KvistError for a request that is refused.

        targets_of: the latency targets that each request brings; None: none bring any.
        """
        if targets_of is not None:
            self._targets_of = targets_of
        progress = LoadProgress(records)
        self._start_s = self._clock.now_s()
        cpu_start_s = time.process_time()
        while progress.num_unfinished:
            now_s = self._clock.now_s()
            for due_s, record in progress.take_due(now_s - self._start_s):
                self._submit(record, due_s, now_s)
            if not self._step(progress, now_s):
                self._idle(progress)
        elapsed_s = self._clock.now_s() - self._start_s
        self._requests.sort(key=lambda request: (request.index, request.sample_index))
        cpu_s = time.process_time() - cpu_start_s
        return LoadRun(self._requests, self._steps, self._works, elapsed_s, cpu_s, self._client_cpu_s)

    def _step(self, progress: LoadProgress, now_s: float) -> bool:
        """Compute one step. False if there is none to do."""
        step = self._core.begin(now_s)
        if step is None:
            self._note(self._core.take_events(now_s), progress)
            return False
        self._core.wait(step)
        done_s = self._clock.now_s()
        batch = self._core.finish(step, done_s, done_s - now_s)
        self._note(batch, progress)
        if batch.step is not None:
            self._steps.append(batch.step)
            self._works.append(work_of_plan(step.plan))
            if self._on_step is not None:
                self._on_step(batch.step, self._open)
        return True

    def _idle(self, progress: LoadProgress) -> None:
        next_s = progress.next_time_s
        if next_s is None:
            if progress.num_unfinished and not self._core.has_unfinished_requests:
                raise RuntimeError("requests are left, but none of them is due or running")
            self._sleep(0.001)
            return
        self._sleep(min(max(next_s + self._start_s - self._clock.now_s(), 0.0), LONGEST_SLEEP_S))

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _submit(self, record: TraceRecord, due_s: float, now_s: float) -> None:
        begun_s = time.thread_time()
        prompt = list(self._texts.prompt(record, self._answer))
        self._client_cpu_s += time.thread_time() - begun_s
        sampling = SamplingParams(
            temperature=self._temperature, max_tokens=record.num_output_tokens, ignore_eos=True, seed=record.index
        )
        self._num_open_samples[record.index] = record.n
        targets = self._targets_of(record, len(prompt))
        for sample_index in range(record.n):
            request_id = self._id(record.index, sample_index)
            request = RequestRun(record.index, sample_index, due_s, prompt, targets=targets)
            self._open[request_id] = request
            self._requests.append(request)
            shares = sample_index > 0 and self._shares_samples
            self._core.add_request(
                NewRequest(
                    request_id=request_id,
                    prompt_token_ids=pack_token_ids(prompt),
                    sampling=sampling,
                    arrival_time_s=self._start_s + due_s,
                    sample_index=sample_index,
                    fork_of=self._id(record.index, 0) if shares else None,
                    ttft_ms=None if targets.ttft_s is None else targets.ttft_s * 1e3,
                    tpot_ms=None if targets.tpot_s is None else targets.tpot_s * 1e3,
                ),
                now_s,
            )

    def _answer(self, index: int) -> Sequence[int]:
        return next(run.token_ids for run in self._requests if run.index == index and run.sample_index == 0)

    def _id(self, index: int, sample_index: int) -> RequestId:
        return RequestId(f"{self._name}/{index}/{sample_index}")

    def _note(self, batch: EventBatch, progress: LoadProgress) -> None:
        begun_s = time.thread_time()
        for event in batch.events:
            request = self._open.get(event.request_id)
            if request is not None:
                self._note_event(event, request, batch.time_s - self._start_s, progress)
        self._client_cpu_s += time.thread_time() - begun_s

    def _note_event(self, event: RequestEvent, request: RequestRun, now_s: float, progress: LoadProgress) -> None:
        if isinstance(event, TokensSampled):
            request.token_ids.extend(event.token_ids)
            request.token_times_s.extend([now_s] * len(event.token_ids))
            request.num_draft_tokens += event.num_draft_tokens
            request.num_accepted_tokens += len(event.token_ids) - 1 if event.num_draft_tokens else 0
        elif isinstance(event, Scheduled):
            if request.num_preemptions == 0:
                request.num_cached_tokens = event.num_cached_tokens
        elif isinstance(event, Preempted):
            request.num_preemptions += 1
        elif isinstance(event, Finished):
            if event.error is not None:
                raise KvistError(f"request {event.request_id} failed: {event.error}")
            request.finished_s = now_s
            del self._open[event.request_id]
            self._num_open_samples[request.index] -= 1
            if not self._num_open_samples[request.index]:
                progress.note_ended(request.index, now_s)


def percentile(values: Iterable[float], percent: float) -> float:
    """As metrics.percentiles, for values in any order; 0.0 for none."""
    rising = sorted(values)
    return percentile_of_rising(rising, percent) if rising else 0.0
