"""`kvist bench serve`: what a server does under a load, from outside.

In order: is it ready, what does it offer, warm up, the unloaded latency and the capacity where the targets or the
load's rate are multiples of them, then the run itself or the search for the largest rate. Each has texts of its own, so
that none finds its prompts cached by another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from kvist.bench.answer_reader import TokenCount
from kvist.bench.client_run import ClientRun, FinishedRun, Progress
from kvist.bench.http_connection import HttpServer
from kvist.bench.load_fit import check_lengths, separate_requests, without_too_long
from kvist.bench.load_source import continues_answers, offered_rate_per_s
from kvist.bench.machine import date_now
from kvist.bench.prompt_writer import PromptForm, PromptWriter
from kvist.bench.request_body import BodyWriter
from kvist.bench.run_requests import served_requests, token_count_of
from kvist.bench.serve_options import ServeOptions
from kvist.bench.served_model import ServedModel, choose_model, probe, wait_until_ready
from kvist.bench.server_counters import read_counters, server_change
from kvist.bench.server_steps import start_trace, steps_between, stop_trace
from kvist.bench.text_codec import LocalCodec, ServerCodec, TextCodec
from kvist.bench.unloaded_latency import levels_of, targets_of
from kvist.core.errors import ConfigError, EngineUnavailableError
from kvist.metrics.benchmark_result import Document, benchmark_result
from kvist.metrics.rate_search import Attained, RateFound, search_rate
from kvist.metrics.served_request import ServedRequest
from kvist.metrics.service_level import ServiceLevels
from kvist.metrics.step_record import StepRecord
from kvist.metrics.trace_summary import summarize_steps
from kvist.metrics.unloaded_latency import UnloadedLatency, unloaded_points
from kvist.workload.adapting import all_at_once
from kvist.workload.trace_record import TraceRecord, count_prompt_tokens

UNLOADED_OUTPUT_TOKENS, UNLOADED_REPEATS = 16, 2
WARM_UP_TOKENS, WARM_UP_OUTPUT_TOKENS = 64, 8
MAX_FAILED_SHARE = 0.1  # of the requests that capacity is measured with


class Display(Protocol):
    """Shows what is going on."""

    def phase(self, what: str) -> None: ...

    def progress(self, progress: Progress) -> None: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured run: its result, and its requests for plots. steps: the server's, where it traced them."""

    result: Document
    requests: Sequence[ServedRequest]
    steps: Sequence[StepRecord] | None = None


class ServeBench:
    """One benchmark. `stop` may be called at any time; what was measured until then is the result."""

    def __init__(self, options: ServeOptions, display: Display) -> None:
        self._options = options
        self._display = display
        self._server = HttpServer(options.base_url, options.headers)
        self._seed = options.requests.source.seed if options.seed is None else options.seed
        self._running: ClientRun | None = None
        self._is_stopped = False
        self._is_lost = False
        self._model: ServedModel
        self._bodies: BodyWriter
        self._codec: TextCodec | None = None
        self._codec_is_gone = False
        self._capacity_per_s: float | None = options.capacity_per_s
        self._unloaded: UnloadedLatency | None = None
        self._levels: ServiceLevels = {}

    def stop(self) -> None:
        """End what runs. A run that has begun gives a result; before that, `run` raises KeyboardInterrupt."""
        self._is_stopped = True
        if self._running is not None:
            self._running.stop()

    @property
    def is_measuring(self) -> bool:
        """Whether requests are being sent and answered, so that `stop` has something to end."""
        return self._running is not None and self._running.is_sending

    async def run(self) -> Measured:
        """Raises KvistError if the server or the load is not fit for it."""
        try:
            await self._prepare()
            if self._options.max_rate:
                return await self._search()
            return await self._measure(self._draw(self._seed, 1.0))
        finally:
            self._server.close()
            if self._codec is not None:
                self._codec.close()

    async def _prepare(self) -> None:
        options = self._options
        self._display.phase("waiting for the server")
        models = await wait_until_ready(self._server, options.ready_timeout_s)
        model = choose_model(models, options.model)
        self._model = await probe(
            self._server,
            options.path,
            model,
            options.extra_body,
            ignore_eos=options.ignore_eos,
            timeout_s=options.timeout_s,
        )
        self._display.phase("making prompts")
        codec: TextCodec
        if options.tokenizer is not None:
            codec = LocalCodec(options.tokenizer)
        else:
            codec = ServerCodec(self._server.url, options.headers, model[0])
        self._codec = codec
        self._bodies = BodyWriter(PromptWriter(codec, self._form()), self._fields())
        self._levels = self._targets_wanted()
        check_lengths(self._draw(self._seed, 1.0), self._model.max_model_len)
        if options.num_warmups:
            self._display.phase("warming up")
            await self._run(
                separate_requests("warm-up", [WARM_UP_TOKENS] * options.num_warmups, WARM_UP_OUTPUT_TOKENS, self._seed)
            )
        if any(level.is_multiple for level in self._levels.values()):
            await self._measure_unloaded()
        if options.requests.needs_capacity and self._capacity_per_s is None:
            await self._measure_capacity()

    async def _measure(self, records: Sequence[TraceRecord]) -> Measured:
        """The run that counts."""
        self._display.phase("measuring")
        trace = await start_trace(self._server) if self._options.profile else None
        before = await read_counters(self._server)
        try:
            run = await self._run(records, self._display.progress)
        finally:
            if trace is not None:
                await stop_trace(self._server)
        after = await read_counters(self._server)
        self._is_lost = run.lost_server or (before is not None and after is None)
        steps = None if trace is None else steps_between(trace, run.start_s, run.end_s)
        requests = self._served(run, records)
        result = benchmark_result(
            requests,
            duration_s=run.duration_s,
            setup=self._setup(records, run)
            | {"server_was_lost": self._is_lost}
            | ({} if trace is None else _traced(trace, steps)),
            statistics=self._options.statistics,
            server=server_change(before, after),
            client_cpu_share=run.cpu_s / run.duration_s if run.duration_s > 0 else None,
            detailed=self._options.detailed,
        )
        return Measured(result, requests, steps)

    async def _search(self) -> Measured:
        if not self._levels:
            raise ConfigError("--find-max-rate needs targets: --goodput ttft:MS tpot:MS")
        search = search_rate(goal=self._options.attainment, tolerance=self._options.rate_tolerance)
        factor, number, best, last = next(search), 0, None, None
        found: RateFound | None = None
        while found is None:
            number += 1
            records = self._draw(self._seed + 100 * number, factor)
            rate = offered_rate_per_s(records)
            if rate is None:
                raise ConfigError("--find-max-rate needs requests that come one after another: give --request-rate")
            self._display.phase(f"step {number}: {rate:.3g} requests/s")
            try:
                last = await self._measure(records)
            except EngineUnavailableError:
                self._is_lost = True
                if last is None:
                    raise
                break
            if self._is_stopped or self._is_lost:
                break
            attained = _attained(last, rate)
            if attained.share >= self._options.attainment and (
                best is None or rate > best.result["offered_request_rate"]
            ):
                best = last
            try:
                factor = search.send(attained)
            except StopIteration as end:
                found = end.value
        measured = best or last
        assert measured is not None
        measured.result["server_was_lost"] = self._is_lost
        measured.result["rate_search"] = None if found is None else asdict(found)
        return measured

    async def _measure_unloaded(self) -> None:
        self._display.phase("measuring unloaded latency")
        lengths = sorted(count_prompt_tokens(self._draw(self._seed, 1.0)))
        count = min(self._options.num_unloaded, len(set(lengths)))
        chosen = [lengths[round(i * (len(lengths) - 1) / max(count - 1, 1))] for i in range(count)]
        records = separate_requests("unloaded", chosen * UNLOADED_REPEATS, UNLOADED_OUTPUT_TOKENS, self._seed)
        run = await self._run(records, self._display.progress, max_concurrency=1)
        points = unloaded_points(self._served(run, records, with_targets=False))
        if not points:
            raise EngineUnavailableError(f"no request for the unloaded latency succeeded: {_errors(run)}")
        self._unloaded = UnloadedLatency.of(points)

    async def _measure_capacity(self) -> None:
        self._display.phase("measuring capacity")
        records = all_at_once(self._draw(self._seed + 1, 1.0))
        run = await self._run(records, self._display.progress)
        served = self._served(run, records, with_targets=False)
        done = sum(request.is_completed for request in served)
        if done < (1 - MAX_FAILED_SHARE) * len(records):
            raise EngineUnavailableError(
                f"capacity: {len(records) - done} of {len(records)} requests failed when all came at once: "
                f"{_errors(run)}. Give --capacity or --request-rate."
            )
        self._capacity_per_s = done / run.duration_s

    async def _run(
        self,
        records: Sequence[TraceRecord],
        on_progress: Callable[[Progress], None] | None = None,
        *,
        max_concurrency: int | None = None,
    ) -> FinishedRun:
        if self._is_stopped:
            raise KeyboardInterrupt
        run = ClientRun(
            server=self._server,
            path=self._options.path,
            records=records,
            bodies=self._bodies,
            max_concurrency=max_concurrency or self._options.max_concurrency,
            timeout_s=self._options.timeout_s,
            on_progress=on_progress,
        )
        self._running = run
        try:
            return await run.run()
        except OSError as error:  # before anything was sent
            raise EngineUnavailableError(
                f"no connection to {self._server.url}: {error.strerror or error}; is the server still there?"
            ) from error
        finally:
            self._running = None

    def _draw(self, seed: int, faster: float) -> list[TraceRecord]:
        records = self._options.requests.draw(seed, capacity_per_s=self._capacity_per_s or 1.0, faster=faster)
        if not records:
            raise ConfigError(f"the load {self._options.requests.source.name} draws no request at this rate")
        return without_too_long(records, self._model.max_model_len) if self._options.skip_too_long else records

    def _served(
        self, run: FinishedRun, records: Sequence[TraceRecord], *, with_targets: bool = True
    ) -> list[ServedRequest]:
        targets = targets_of(self._levels, self._unloaded) if with_targets and self._levels else None
        return served_requests(run, records, self._count_tokens, targets)

    def _count_tokens(self, text: str) -> int:
        """0 where the server was to tell and is gone: what else was measured must not be lost with it."""
        assert self._codec is not None
        if self._codec_is_gone:
            return 0
        try:
            return len(self._codec.encode(text))
        except (ConfigError, EngineUnavailableError):
            self._codec_is_gone = True
            return 0

    def _form(self) -> PromptForm:
        if self._options.is_chat:
            return PromptForm.MESSAGES
        if self._options.form is not None:
            return self._options.form
        return PromptForm.TEXT if continues_answers(self._draw(self._seed, 1.0)) else PromptForm.TOKENS

    def _fields(self) -> dict[str, Any]:
        source, given = self._options.requests.source, self._options.temperature
        temperature = source.temperature if given is None else given
        return {"model": self._model.name, "temperature": temperature, **self._model.fields, **self._options.extra_body}

    def _targets_wanted(self) -> ServiceLevels:
        if self._options.levels is not None:
            return self._options.levels
        level = self._options.requests.source.service_level
        return {} if level is None else levels_of(level)

    def _setup(self, records: Sequence[TraceRecord], run: FinishedRun) -> Document:
        options, requests = self._options, self._options.requests
        rate = requests.rate
        return {
            "date": date_now(),
            "backend": "openai-chat" if options.is_chat else "openai",
            "endpoint_type": "openai-chat" if options.is_chat else "openai",
            "label": options.label,
            "model_id": self._model.name,
            "tokenizer_id": options.tokenizer or self._model.name,
            "num_prompts": len(records),
            "request_rate": _request_rate(records) if rate is None or math.isinf(rate.per_s) else rate.per_s,
            "burstiness": 1.0 if rate is None else rate.burstiness,
            "max_concurrency": options.max_concurrency,
            "base_url": self._server.url,
            "endpoint": options.path,
            "load": requests.source.name,
            "seed": self._seed,
            "length_factor": requests.length_factor,
            "time_factor": requests.time_factor,
            "prompts_as": self._bodies.prompts.form.value,
            "token_counting": (TokenCount.NONE if self._codec_is_gone else token_count_of(run)).value,
            "ignore_eos": self._model.ignores_eos,
            "offered_request_rate": offered_rate_per_s(records),
            "capacity_per_s": self._capacity_per_s,
            "targets": {name: level.text for name, level in self._levels.items()},
            "unloaded": self._unloaded.as_document() if self._unloaded else None,
            "was_stopped": run.was_stopped,
        }


def _attained(measured: Measured, rate_per_s: float) -> Attained:
    requests = measured.requests
    good = sum(request.meets_targets() for request in requests)
    return Attained(rate_per_s, good, len(requests), were_alone=measured.result["max_concurrent_requests"] <= 1)


def _traced(trace: Path, steps: Sequence[StepRecord] | None) -> Document:
    """steps: counts and times by kind; None where the trace is on another machine."""
    if steps is None:
        return {"step_trace": str(trace), "steps": None}
    return {"step_trace": str(trace), "steps": asdict(summarize_steps((0, step) for step in steps))}


def _request_rate(records: Sequence[TraceRecord]) -> float | str:
    return offered_rate_per_s(records) or "inf"


def _errors(run: FinishedRun) -> str:
    return "; ".join(sorted({call.error for call in run.calls if call.error})[:3])
