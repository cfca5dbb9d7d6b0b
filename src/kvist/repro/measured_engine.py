"""The engine that reproductions measure: one loaded model, and runs of loads over it in any configuration."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from kvist.bench.load_run import LoadRun, LoadRunner, OnStep, Prompts
from kvist.bench.loaded_model import LoadedModel, load_model
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.execution.threads import granted_cores
from kvist.kvcache.kv_cache import KVCache
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.runtime.real_clock import RealClock
from kvist.scheduler.drafting import Speculator
from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import TextPart, TraceRecord, count_prompt_tokens

MAX_NUM_SEQS = 32
TOKEN_BUDGET = 512


class MeasuredEngine:
    """Holds the model until `close`; as a context manager too.

    num_kv_tokens: of the pool. max_num_batched_tokens, max_num_seqs: of the largest configuration that it will run.
    """

    def __init__(
        self,
        setting: ReproSetting,
        *,
        num_kv_tokens: int,
        max_num_batched_tokens: int = TOKEN_BUDGET,
        max_num_seqs: int = MAX_NUM_SEQS,
        cache: CacheConfig | None = None,
    ) -> None:
        self._setting = setting
        self._clock = RealClock()
        self._serials = count()
        self._cpu_s = 0.0
        self._elapsed_s = 0.0
        config = EngineConfig(
            model=setting.model,
            cache=cache or setting.cache,
            executor=setting.executor,
            scheduler=SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs),
        )
        setting.say("loading the model")
        num_blocks = -(-num_kv_tokens // config.cache.block_size) + 1
        self.model: LoadedModel = load_model(config, setting.model_path, num_blocks=num_blocks)
        tokenizer = self.model.tokenizer
        self.texts = TextSource(lambda text: tokenizer.encode(text, add_special_tokens=False), read_sentences())
        self.executor = self.model.executor.description
        self.play("warm-up", [_WARM_UP])

    def __enter__(self) -> MeasuredEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.model.close()

    def play(  # noqa: PLR0913 - all that may differ between two runs
        self,
        what: str,
        records: Sequence[TraceRecord],
        *,
        scheduler: SchedulerConfig | None = None,
        kv_cache: KVCache | None = None,
        speculator: Speculator | None = None,
        temperature: float = 0.0,
        shares_samples: bool = True,
        on_step: OnStep | None = None,
        prompts: Prompts | None = None,
    ) -> LoadRun:
        """Run a load through a fresh engine.

        kv_cache: empty; None for one over the whole pool, with prefix caching. prompts: None for the book's text.
        """
        config = scheduler or SchedulerConfig()
        if config.max_num_batched_tokens is None:
            config = replace(config, max_num_batched_tokens=self.model.max_num_batched_tokens)
        config = replace(
            config,
            max_num_seqs=min(config.max_num_seqs, self.model.config.scheduler.max_num_seqs),
            max_num_queued_reqs=max(len(records), config.max_num_queued_reqs),
        )
        core = self.model.new_core(kv_cache or self.model.new_cache(), config, speculator)
        self._setting.say(what)
        runner = LoadRunner(
            core,
            self._clock,
            prompts or self.texts,
            name=f"run-{next(self._serials)}",
            temperature=temperature,
            shares_samples=shares_samples,
            on_step=on_step,
        )
        run = runner.run(records)
        self.model.forget(runner.request_ids)
        if all(record.arrival_s == 0.0 for record in records):  # else it waits for requests
            self._cpu_s += run.cpu_s
            self._elapsed_s += run.elapsed_s
        return run

    def result(
        self,
        name: str,
        title: str,
        *,
        setup: str,
        rows: Sequence[ReproRow],
        plots: Sequence[BarPlot],
        notes: Sequence[str],
        repeats: int | None = None,
    ) -> ReproResult:
        """What was found on this engine, and whether the machine was busy. repeats: None for the setting's."""
        return ReproResult(
            name=name,
            title=title,
            setup=setup,
            executor=self.executor,
            size=self._setting.size,
            repeats=self._setting.repeats if repeats is None else repeats,
            rows=rows,
            plots=plots,
            notes=[*notes, *self.busy_notes()],
        )

    def busy_notes(self) -> list[str]:
        """A note for the reader if other work took much of the machine from these runs."""
        num_threads = self._setting.executor.num_threads or granted_cores()
        share = self._cpu_s / (self._elapsed_s * num_threads) if self._elapsed_s else 1.0
        return [BUSY.format(share=share, num_threads=num_threads)] if share < LEAST_SHARE else []


LEAST_SHARE = 0.75  # of its threads' time: less, and other work or waiting took the rest
BUSY = (
    "These runs used {share:.0%} of the time of their {num_threads} threads: other work had the machine, or steps were "
    "too short for all threads. If it was other work, times and their ratios are rough; shares, counts and equal "
    "outputs are not touched."
)

_WARM_UP = TraceRecord(index=0, arrival_s=0.0, prompt=(TextPart("warm-up", 0, 64),), num_output_tokens=4)


def at_once(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    """The same requests, all there from the start, and follow-ups without a pause: how fast can it be?"""
    return [
        TraceRecord(
            index=record.index,
            arrival_s=0.0,
            prompt=record.prompt,
            num_output_tokens=record.num_output_tokens,
            after=record.after,
            n=record.n,
            session_id=record.session_id,
        )
        for record in records
    ]


def total_tokens(records: Sequence[TraceRecord]) -> int:
    """Prompt and output tokens of all requests, as if nothing were shared."""
    return sum(count_prompt_tokens(records)) + sum(record.num_output_tokens * record.n for record in records)


def longest_request_tokens(records: Sequence[TraceRecord]) -> int:
    prompts = count_prompt_tokens(records)
    return max(prompt + record.num_output_tokens for prompt, record in zip(prompts, records, strict=True))


def by_cpu_time(measured: Sequence[LoadRun], baseline: Sequence[LoadRun]) -> str:
    """The same comparison in CPU seconds of this process, which other work on the machine disturbs less."""
    ratio = statistics.median(run.cpu_s for run in baseline) / statistics.median(run.cpu_s for run in measured)
    return f"{ratio:.2f}x by CPU time"


def spread_of_ratio(measured: Sequence[float], baseline: Sequence[float]) -> float | None:
    """(largest - smallest) / median of the ratio in each repeat; None for one repeat."""
    return spread([a / b for a, b in zip(measured, baseline, strict=True)])


def spread(values: Sequence[float]) -> float | None:
    """(largest - smallest) / median; None for one value."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / statistics.median(values)
