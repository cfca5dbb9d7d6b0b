"""What writing a step trace costs: the time from step to step of one engine, with its trace on and off in turns.

Two engines, one timing the kernels of each 128th step of a kind (the default) and one of every step. In each, rounds
without and with the trace alternate on the same greedy requests. Each pair of rounds gives a ratio of median periods of
decode steps; "cost" is the median ratio less 1, its quartiles show how noisy the machine was. "cpu" is steadier: the
CPU time of the step loop's thread inside the tracer. The smallest step is where a trace costs most: one request.

Run: python -m benchmarks.step_trace
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.result_file import spread, take_no_options, write_result
from kvist.api.async_llm import AsyncLLM
from kvist.core.request_events import EventBatch, StepSummary
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import StepPlan
from kvist.runtime.step_tracer import StepTracer

NUM_ROUNDS = {128: 6, 1: 3}  # of each kind
LOADS = {"1 request": (1, 256), "16 requests": (16, 128)}  # requests at once, output tokens of each
LIMITS = "one json line a step and the counters that changed; with kernels timed, a line for each operation of the step"


async def run_round(llm: AsyncLLM, num_requests: int, num_tokens: int, serial: str) -> None:
    async def one(index: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        prompt = [100 + index, *range(200, 230)]
        async for _ in llm.generate(prompt, sampling, request_id=f"{serial}-{index}"):
            pass

    await asyncio.gather(*(one(index) for index in range(num_requests)))


def periods_s(steps: list[StepSummary]) -> list[float]:
    """Times from the end of a decode step to the end of the next, of equal size."""
    return [
        later.time_s - step.time_s
        for step, later in pairwise(steps)
        if later.step_id == step.step_id + 1
        and not step.num_prefill_tokens
        and not later.num_prefill_tokens
        and step.num_decode_tokens == later.num_decode_tokens
    ]


def count_cpu_time() -> list[float]:
    """Have the tracer note the CPU seconds that each step costs it, in a list that grows."""
    cpu_s: list[float] = []
    note_step = StepTracer.note_step

    def timed_note_step(self: StepTracer, plan: StepPlan, batch: EventBatch) -> None:
        begun_s = time.thread_time()
        note_step(self, plan, batch)
        if self.is_on:
            cpu_s.append(time.thread_time() - begun_s)

    StepTracer.note_step = timed_note_step  # type: ignore[method-assign]
    return cpu_s


async def measure(every: int, folder: Path, cpu_s: list[float]) -> dict[str, object]:
    path = folder / f"every-{every}.json"
    llm = AsyncLLM(
        engine_client="thread", trace=str(path), trace_on_demand=True, trace_operations_every=every,
        max_num_batched_tokens=512,
    )  # fmt: skip
    await llm.start()
    steps: list[StepSummary] = []

    def listen(batch: EventBatch) -> None:
        if batch.step is not None:
            steps.append(batch.step)

    llm.engine.client.add_listener(listen)
    results: dict[str, object] = {}
    try:
        for name, (num_requests, num_tokens) in LOADS.items():
            medians_s: dict[bool, list[float]] = {False: [], True: []}
            num_bytes = num_traced = 0
            for number in range(2 * NUM_ROUNDS[every] + 2):
                is_on = number % 2 == 1
                if number == 2:  # a round of each was for warming up
                    medians_s = {False: [], True: []}
                    num_bytes = num_traced = 0
                    cpu_s.clear()
                if is_on:
                    await llm.start_profile()
                steps.clear()
                await run_round(llm, num_requests, num_tokens, f"{name}-{number}")
                if is_on:
                    await llm.stop_profile()
                    num_bytes += path.stat().st_size
                    num_traced += len(steps)
                medians_s[is_on].append(statistics.median(periods_s(steps)))
            ratios = [on / off for off, on in zip(medians_s[False], medians_s[True], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            period_s = statistics.median(medians_s[False])
            results[name] = {
                "off": spread([median_s * 1e3 for median_s in medians_s[False]], "ms from step to step, by round"),
                "on": spread([median_s * 1e3 for median_s in medians_s[True]], "ms from step to step, by round"),
                "cost": middle - 1,
                "cost_quartiles": [low - 1, high - 1],
                "cpu_us_per_step": 1e6 * sum(cpu_s) / num_traced,
                "cpu": sum(cpu_s) / num_traced / period_s,
                "bytes_per_step": num_bytes / num_traced,
            }
    finally:
        await llm.shutdown()
    return results


async def main() -> dict[str, object]:
    cpu_s = count_cpu_time()
    with tempfile.TemporaryDirectory() as folder:
        return {
            f"kernels of every {every}. step timed": await measure(every, Path(folder), cpu_s) for every in NUM_ROUNDS
        }


if __name__ == "__main__":
    take_no_options(__doc__)
    path = write_result("step_trace", asyncio.run(main()), seed=None, num_warm_up=1, limits=LIMITS)
    print(path.read_text(encoding="utf-8"))
