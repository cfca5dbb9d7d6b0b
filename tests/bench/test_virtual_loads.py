"""slo_budget on frozen loads in virtual time: no stream is slower than its target, and more requests are good."""

from __future__ import annotations

from functools import cache

import pytest

from kvist.bench.load_run import LoadRun
from kvist.bench.unloaded_latency import levels_of, predicted_latency, targets_of
from kvist.bench.virtual_run import VirtualLoadRunner, virtual_core
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.clock import VirtualClock
from kvist.costmodel.step_time_model import KnownStepTimes
from kvist.costmodel.step_work import StepWork
from kvist.metrics.definitions import RequestTimes, meets_targets
from kvist.workload.load_file import frozen_loads
from kvist.workload.text_source import TextSource

LOADS = {"retrieval": 2.0, "chat_multi_turn": 3.9, "agent": 2.8}  # requests per second that it can serve
SENTENCES = [f"Sentence number {index} of a short made-up book." for index in range(50)]


class SmallMachine:
    """About what a small model takes on two cores."""

    def predict_s(self, work: StepWork) -> float:
        return (
            0.006
            + 3e-4 * min(work.num_tokens, 16)
            + 5e-4 * work.num_tokens
            + 1.5e-6 * work.decode_context_tokens
            + 2e-7 * work.prefill_pairs
        )

    def margin_s(self, work: StepWork) -> float:
        return 0.0


@cache
def played(load_name: str, policy: str, token_budget: int, is_known: bool) -> LoadRun:
    load, level = frozen_loads().load(load_name), frozen_loads().service_level
    assert level is not None
    clock, machine = VirtualClock(), SmallMachine()
    config = SchedulerConfig(policy=policy, max_num_batched_tokens=token_budget, max_num_queued_reqs=10_000)
    core = virtual_core(config, clock, machine, num_blocks=8_000, learned=KnownStepTimes(machine) if is_known else None)
    texts = TextSource(lambda text: [ord(letter) for letter in text], SENTENCES)
    unloaded = predicted_latency(machine, max_tokens=4096, token_budget=2048)
    runner = VirtualLoadRunner(core, clock, texts, name="virtual")
    return runner.run(load.records(capacity_per_s=LOADS[load_name]), targets_of(levels_of(level), unloaded))


def times(run: LoadRun, *, has_ttft: bool) -> list[RequestTimes]:
    return [
        RequestTimes(
            queued_s=request.arrival_s,
            num_prompt_tokens=len(request.prompt_token_ids),
            first_token_s=request.token_times_s[0],
            last_token_s=request.token_times_s[-1] - 1e-9,
            num_output_tokens=len(request.token_ids),
            ttft_target_s=request.targets.ttft_s if has_ttft else None,
            tpot_target_s=request.targets.tpot_s,
        )
        for request in run.requests
    ]


@pytest.mark.parametrize("load_name", LOADS)
@pytest.mark.parametrize("is_known", [True, False])
def test_no_request_misses_its_time_per_output_token(load_name: str, *, is_known: bool) -> None:
    run = played(load_name, "slo_budget", 2048, is_known)
    assert all(meets_targets(each) for each in times(run, has_ttft=False))


@pytest.mark.parametrize("load_name", LOADS)
def test_more_requests_meet_all_targets_than_with_any_fixed_chunk(load_name: str) -> None:
    def num_good(policy: str, budget: int, *, is_known: bool) -> int:
        return sum(map(meets_targets, times(played(load_name, policy, budget, is_known), has_ttft=True)))

    best_fixed = max(num_good("chunked_prefill", budget, is_known=True) for budget in (16, 64, 256, 2048))
    assert num_good("slo_budget", 2048, is_known=False) > best_fixed


def test_outputs_are_those_of_every_other_policy() -> None:
    assert played("agent", "slo_budget", 2048, False).outputs == played("agent", "chunked_prefill", 256, True).outputs
