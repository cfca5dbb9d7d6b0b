"""Predictions of an engine that keeps to its profile are right; what disturbs a run is told without knowing errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from kvist.bench.fidelity.comparison import GOALS, METRICS, Goal, compared_row, judge
from kvist.bench.fidelity.disturbance import CpuTimes, Surroundings, read_cpu_times, surroundings
from kvist.bench.fidelity.machine_speed import NEIGHBOURS, MachineSpeed
from kvist.bench.fidelity.parts import Parts
from kvist.bench.fidelity.predicted import predict, profile_of, step_time_ratio
from kvist.bench.fidelity.setting import FidelitySetting, Scenario, scenarios, simulated_cluster
from kvist.bench.fidelity.steps_between import SHARE, PausedClock, StepBetween, StepsBetween, rounds_of
from kvist.bench.host_time import HostTime
from kvist.bench.policy_comparison import served_requests
from kvist.bench.profile import fit_table, round_levels, usual_s
from kvist.bench.virtual_run import VirtualLoadRunner, virtual_core
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.clock import VirtualClock
from kvist.core.errors import ConfigError
from kvist.core.request_events import EventBatch
from kvist.costmodel.profile_table import ProfileModel, ProfilePoint, ProfileTable
from kvist.metrics.benchmark_result import ServerChange, benchmark_result
from kvist.workload.adapting import all_at_once, at_mean_rate
from kvist.workload.trace_record import TextPart, TraceRecord

SCHEDULER = SchedulerConfig(max_num_batched_tokens=128, max_num_seqs=16)
CHAT = Scenario(name="chat", load="chat", pool_tokens=8192, load_factors=(0.7,))


def table() -> ProfileTable:
    """A machine with plain numbers."""
    shapes = [(1, 1, 64), (4, 1, 64), (8, 1, 512), (16, 1, 512), (1, 64, 0), (1, 128, 0), (1, 128, 512)]
    blank = [
        ProfilePoint(num_sequences=n, num_new_tokens=new, num_context_tokens=context, seconds=0.0)
        for n, new, context in shapes
    ]
    points = [
        ProfilePoint(
            num_sequences=p.num_sequences,
            num_new_tokens=p.num_new_tokens,
            num_context_tokens=p.num_context_tokens,
            seconds=0.004 + 3e-4 * p.work.num_tokens + 1e-6 * p.work.decode_context_tokens,
        )
        for p in blank
    ]
    return fit_table(points, HostTime(1e-4, 1e-6, 0.0), drift=0.0, name="plain", machine={})


@pytest.mark.parametrize("load", ["chat", "retrieval", "chat_multi_turn"])
def test_an_engine_that_keeps_to_its_profile_is_predicted_exactly(load: str) -> None:
    scenario = Scenario(name=load, load=load, pool_tokens=8192, load_factors=(0.7,))
    records = at_mean_rate(scenario.records(40), 3.0)
    clock = VirtualClock()
    core = virtual_core(SCHEDULER, clock, ProfileModel(table()), num_blocks=8192 // 16)
    run = VirtualLoadRunner(core, clock, _Texts(), name="engine").run(records)
    measured = benchmark_result(
        served_requests(run), duration_s=run.elapsed_s, setup={}, server=ServerChange(preemptions=0)
    )
    cluster = simulated_cluster(scenario, SCHEDULER, block_size=16, max_model_len=8192)
    predicted = predict(table(), cluster, records)
    for metric in METRICS:
        row = compared_row(metric, [measured], [predicted])
        assert row is not None
        assert row["error"] == pytest.approx(0.0, abs=1e-3), metric.field
    works = [list(msgspec.structs.astuple(work)) for work in run.works]
    assert step_time_ratio(table(), works, [step.step_time_s for step in run.steps]) == pytest.approx(1.0, rel=1e-3)


class _Texts:
    """Prompts whose texts share no token by chance, as the simulator's."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def prompt(self, record: TraceRecord, answers: Callable[[int], Sequence[int]]) -> list[int]:
        tokens: list[int] = []
        for part in record.prompt:
            if isinstance(part, TextPart):
                first = 100_000 * (1 + self._numbers.setdefault(part.text_id, len(self._numbers))) + part.start
                tokens += range(first, first + part.num_tokens)
            else:
                tokens += answers(part.index)
        return tokens


def test_a_machine_twice_as_slow_doubles_the_ratio_of_steps() -> None:
    works = [[64, 1, 1, 0, 2080, 64]]
    seconds = ProfileModel(table()).predict_s(table().points[4].work)
    assert step_time_ratio(table(), works, [2 * seconds]) == pytest.approx(2.0, rel=0.05)


def between(*, decode: float, prefill: float, begin_s: float, end_s: float) -> list[StepBetween]:
    """The profile's steps in turn, ten a second, on a machine that makes them so many times longer."""
    points = table().points
    count = round(10 * (end_s - begin_s))
    return [
        StepBetween(begin_s + number / 10, place, points[place].seconds * (prefill if is_prefill else decode))
        for number in range(count)
        for place in [number % len(points)]
        for is_prefill in [bool(points[place].work.prefill_pairs)]
    ]


def test_steps_take_what_those_around_them_say_by_their_kind() -> None:
    slow_start = between(decode=1.5, prefill=2.0, begin_s=0.0, end_s=10.0)
    speed = MachineSpeed(table(), slow_start + between(decode=1.0, prefill=0.8, begin_s=10.0, end_s=20.0))
    model, decode, prefill = ProfileModel(table()), table().points[0].work, table().points[4].work
    ratios = []
    for time_s in (0.0, 5.0, 15.0, 99.0):
        speed.note_turn(0, None, EventBatch(time_s=time_s, events=[]))
        ratios.append(
            (speed.predict_s(decode) / model.predict_s(decode), speed.predict_s(prefill) / model.predict_s(prefill))
        )
    assert ratios == [pytest.approx(each) for each in ((1.5, 2.0), (1.5, 2.0), (1.0, 0.8), (1.0, 0.8))]
    assert speed.means == pytest.approx((1.25, 1.4), rel=0.02)


def test_a_step_that_was_held_up_says_little_of_the_machine() -> None:
    held_up = [StepBetween(0.0, 0, 1e3 * table().points[0].seconds)]
    steps = held_up + [StepBetween(0.1 * n, 0, table().points[0].seconds) for n in range(1, NEIGHBOURS)]
    assert MachineSpeed(table(), steps).means[0] == pytest.approx(1.0 + 1.0 / NEIGHBOURS)


def test_a_load_is_predicted_at_the_speed_that_the_steps_between_tell() -> None:
    records = all_at_once(CHAT.records(20))
    cluster = simulated_cluster(CHAT, SCHEDULER, block_size=16, max_model_len=8192)
    usual = predict(table(), cluster, records)
    slow = predict(table(), cluster, records, between(decode=3.0, prefill=3.0, begin_s=0.0, end_s=5.0))
    assert slow["request_throughput"] == pytest.approx(usual["request_throughput"] / 3, rel=1e-3)


def test_rounds_between_runs_count_as_much_as_those_of_the_profile() -> None:
    times = [point.seconds for point in table().points]

    def slower(scale: float) -> list[float]:
        return [scale * seconds for seconds in times]

    profile = {"steps": msgspec.to_builtins(table().points), "rounds": [slower(1.0)] * 3, "host": (1e-4, 1e-6, 0.0)}
    both = profile_of(profile, [slower(1.2)] * 3, name="plain")
    assert [point.seconds for point in both.points] == pytest.approx(slower(1.1))
    assert both.drift == pytest.approx(0.2)
    assert both.host_s == pytest.approx(1e-4)
    assert round_levels([slower(1.0), slower(1.2)]) == pytest.approx([1 / 1.1, 1.2 / 1.1])


class _Grid:
    """Steps of 10, 20, 30, ... ms."""

    steps = (0,) * 7

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def time_step(self, place: int) -> float:
        seconds = 0.01 * (1 + place)
        self._clock.advance_to(self._clock.now_s() + seconds)
        return seconds


def test_a_run_loses_no_time_to_the_steps_that_are_timed_between_its_own() -> None:
    machine = VirtualClock(5.0)
    clock = PausedClock(machine)
    steps = StepsBetween(_Grid(machine), clock, machine)
    for _ in range(100):
        machine.advance_to(machine.now_s() + 0.1)
        steps.time_step()
    assert clock.now_s() == pytest.approx(5.0 + 10.0)
    used_s = machine.now_s() - clock.now_s()
    assert SHARE * 10.0 <= used_s <= SHARE * 10.0 + 0.07
    timed = steps.timed()
    times_s = [step.at_s for step in timed]
    assert times_s == sorted(times_s)
    assert 0.0 < times_s[0] < 0.2
    assert 9.0 < times_s[-1] < 10.1
    rounds = rounds_of(timed, 7)
    assert rounds == [pytest.approx([0.01 * (1 + place) for place in range(7)])] * len(rounds)
    assert len(rounds) == 9  # of 0.28 s each, and the last one ended after the run


def test_a_run_without_steps_has_a_round_too() -> None:
    machine = VirtualClock()
    assert len(StepsBetween(_Grid(machine), PausedClock(machine), machine).timed()) == 7


def test_a_step_takes_the_mean_of_its_times_and_one_that_was_held_up_counts_little() -> None:
    assert usual_s([1.0, 1.1, 1.2]) == pytest.approx(1.1)
    assert usual_s([1.0, 1.0, 1.0, 100.0]) == pytest.approx(1.25)


def test_other_work_and_a_slower_machine_disturb_a_run() -> None:
    around = surroundings(CpuTimes(100.0, 1.0), CpuTimes(1e6, 1.0), elapsed_s=10.0, own_s=15.0, probe_s=(0.010, 0.0105))
    assert any("other processes" in fault for fault in around.faults())
    quiet = Surroundings(others_share=0.01, steal_share=0.0, probe_s=(0.010, 0.0200))
    assert quiet.faults(0.010) == []
    assert len(quiet.faults(0.008)) == 1
    assert Surroundings(others_share=None, steal_share=None, probe_s=(1.0, 1.0)).faults() == []


def test_systems_without_processor_times_disturb_nothing(tmp_path: Path) -> None:
    assert read_cpu_times(tmp_path / "missing") == CpuTimes(None, None)
    (tmp_path / "stat").write_text("cpu 1 2\n", encoding="ascii")
    assert read_cpu_times(tmp_path / "stat") == CpuTimes(None, None)


def test_parts_are_kept_and_those_of_another_set_up_refused(tmp_path: Path) -> None:
    file = tmp_path / "parts"
    Parts(file, {"model": "a"}).add("profile/1", {"seconds": 1.0})
    again = Parts(file, {"model": "a"})
    assert "profile/1" in again
    assert again["profile/1"] == {"seconds": 1.0}
    with pytest.raises(ConfigError, match="holds parts with model a, and this call asks for b"):
        Parts(file, {"model": "b"})
    file.write_text("nothing", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no parts"):
        Parts(file, {"model": "a"})


def test_each_repeat_measures_the_capacity_before_its_loads() -> None:
    setting = FidelitySetting(scenarios=[CHAT], scheduler=SCHEDULER, repeats=2, seconds=1.0, profile_s=1.0)
    assert setting.parts == ["profile", "chat/capacity/1", "chat/0.7/1", "chat/capacity/2", "chat/0.7/2"]
    assert [scenario.name for scenario in scenarios(("chat",), (0.5,), has_tight_pool=True)] == [
        "chat",
        "service_chat, small pool",
    ]


def test_a_goal_widens_with_the_spread_where_it_says_so() -> None:
    cells = [
        {"load_factor": 0.9, "rows": [{"metric": "median_ttft_ms", "error": 0.3, "spread": 0.2}]},
        {"load_factor": None, "rows": [{"metric": "median_ttft_ms", "error": 9.0, "spread": None}]},
    ]
    at_090 = next(goal for goal in GOALS if goal.or_spread)
    verdict = judge(at_090, cells)
    assert verdict is not None
    assert verdict["is_met"]
    assert verdict["cells"] == 1
    assert judge(Goal("none", ("median_ttft_ms",), 0.1, highest=0.5), cells) is None


def test_a_share_is_compared_in_points_and_a_time_relatively() -> None:
    by_field = {metric.field: metric for metric in METRICS}
    share = compared_row(by_field["cache_hit_share"], [{"cache_hit_share": 0.5}], [{"cache_hit_share": 0.51}])
    latency = compared_row(by_field["p99_ttft_ms"], [{"p99_ttft_ms": 50.0}], [{"p99_ttft_ms": 60.0}])
    assert share is not None
    assert latency is not None
    assert share["error"] == pytest.approx(0.01)
    assert latency["error"] == pytest.approx(0.2)
    assert compared_row(by_field["p99_ttft_ms"], [{"p99_ttft_ms": None}], [{"p99_ttft_ms": 60.0}]) is None


def test_the_error_is_the_median_of_the_repeats_own() -> None:
    metric = METRICS[0]
    runs = [{metric.field: 100.0}, {metric.field: 120.0}, {metric.field: 140.0}]
    row = compared_row(metric, runs, [{metric.field: 101.0}, {metric.field: 126.0}, {metric.field: 280.0}])
    assert row is not None
    assert row["errors"] == pytest.approx([0.01, 0.05, 1.0])
    assert row["error"] == pytest.approx(0.05)
    assert row["spread"] == pytest.approx(40.0 / 120.0)
    assert compared_row(metric, [{metric.field: 0.0}], [{metric.field: 1.0}]) is None


def test_requests_that_do_not_fit_a_small_pool_are_left_out_and_some_of_the_rest_are_preempted() -> None:
    small = scenarios((), (), has_tight_pool=True)[0]
    records = small.records(80)
    assert [record.index for record in records] == list(range(80))
    cluster = simulated_cluster(small, SCHEDULER, block_size=16, max_model_len=8192)
    predicted = predict(table(), cluster, all_at_once(records))
    assert predicted["completed"] == 80
    assert predicted["preemptions"] > 0
