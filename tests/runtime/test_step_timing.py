"""The start-up timing measures as much as is useful, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvist.core.clock import VirtualClock
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.runtime.step_timing import (
    StepPoint,
    keep_timing,
    load_timing,
    measure_steps,
    timed_steps,
    timing_key,
)


class TimedExecutor:
    """Takes a time per token on a virtual clock."""

    num_blocks = 1000

    def __init__(self, clock: VirtualClock, per_token_s: float) -> None:
        self._clock = clock
        self._per_token_s = per_token_s
        self.known: set[str] = set()
        self.slow_steps: set[int] = set()  # which of the steps with rows take ten times as long
        self._num_steps = 0

    def begin_step(self, plan: StepPlan) -> StepResult:
        self.known -= set(plan.dropped_request_ids)
        self.known |= {new.request_id for new in plan.new_requests}
        for row, request_id in enumerate(plan.request_ids):
            blocks = [block for edit in plan.table_edits if edit.request_id == request_id for block in edit.block_ids]
            assert len(blocks) * 16 >= plan.num_scheduled_tokens[row]
        self._num_steps += bool(plan.request_ids)
        slowness = 10 if self._num_steps in self.slow_steps else 1
        self._clock.advance_to(self._clock.now_s() + slowness * self._per_token_s * plan.num_total_tokens)
        return StepResult(step_id=plan.step_id, sampled_token_ids=[(1,) for _ in plan.request_ids])

    def finish_step(self, handle: StepResult) -> StepResult:
        return handle

    def close(self) -> None:
        """Nothing to free."""


def measured(per_token_s: float, max_tokens: int = 8192) -> list[StepPoint]:
    clock = VirtualClock()
    executor = TimedExecutor(clock, per_token_s)
    timing = measure_steps(executor, clock, block_size=16, max_tokens=max_tokens)
    assert executor.known == set()
    assert timing.is_steady
    return timing.points


@pytest.mark.parametrize(
    ("slow_steps", "is_steady"),
    [
        (set(), True),
        ({3}, True),  # the second of 16 tokens; the third agrees with the first
        ({2, 4}, True),
        ({3, 4, 5}, False),  # the shortest is alone
        ({2, 5}, True),  # the first of 16 and the second of 32
    ],
)
def test_a_size_is_timed_until_its_shortest_times_agree(slow_steps: set[int], is_steady: bool) -> None:
    clock = VirtualClock()
    executor = TimedExecutor(clock, 1e-4)
    executor.slow_steps = slow_steps
    timing = measure_steps(executor, clock, block_size=16, max_tokens=32)
    assert timing.is_steady == is_steady
    assert [round(point.step_time_s, 9) for point in timing.points] == [0.0016, 0.0032]


def test_a_fast_machine_is_measured_at_every_size() -> None:
    points = measured(1e-6)
    assert [point.num_tokens for point in points] == [16, 32, 64, 128, 256, 512, 1024, 2048]


def test_it_stops_at_the_first_step_that_is_far_too_long() -> None:
    points = measured(2e-3)
    assert [point.num_tokens for point in points] == [16, 32, 64, 128]


def test_a_very_slow_machine_is_measured_once() -> None:
    assert [point.num_tokens for point in measured(1.0)] == [16]


def test_no_step_is_longer_than_the_context() -> None:
    assert max(point.num_tokens for point in measured(1e-6, max_tokens=100)) == 64
    assert [point.num_tokens for point in measured(1e-6, max_tokens=8)] == [8]


def test_kept_points_are_found_again_and_damaged_files_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "timing" / timing_key(["model", "executor"])
    assert load_timing(path) is None
    keep_timing(path, [StepPoint(16, 0.5)])
    assert load_timing(path) == [StepPoint(16, 0.5)]
    for damaged in (b"", b"{}", b"not json", b'{"layout_version":99,"points":[]}'):
        path.write_bytes(damaged)
        assert load_timing(path) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_timing(tmp_path / "file" / "timing.json", [StepPoint(16, 0.5)])


def test_the_key_depends_on_every_part() -> None:
    assert len({timing_key(["a", "b"]), timing_key(["a", "c"]), timing_key(["ab"]), timing_key(["a"])}) == 4


def timed(path: Path, per_token_s: float) -> list[StepPoint]:
    clock = VirtualClock()
    return timed_steps(TimedExecutor(clock, per_token_s), clock, path, block_size=16, max_tokens=64)


def test_kept_times_hold_until_the_machine_is_clearly_faster(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    busy = timed(path, 1e-3)
    assert timed(path, 2e-3) == busy  # busier now: the machine has shown that it can do better
    assert timed(path, 0.8e-3) == busy
    quiet = timed(path, 1e-4)
    assert quiet[0].step_time_s < busy[0].step_time_s / 5
    assert timed(path, 1e-3) == quiet


def test_what_a_short_context_measured_is_not_all_that_a_long_one_gets(tmp_path: Path) -> None:
    path, clock = tmp_path / "t.json", VirtualClock()
    executor = TimedExecutor(clock, 1e-5)
    sizes = []
    for max_tokens in (20, 300, 20, 300):
        points = timed_steps(executor, clock, path, block_size=16, max_tokens=max_tokens)
        sizes.append([point.num_tokens for point in points])
    assert sizes == [[16], [16, 32, 64, 128, 256], [16], [16, 32, 64, 128, 256]]


def test_kept_points_that_make_no_sense_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for num_tokens, step_time_s in ((0, 0.1), (-5, 0.1), (10**9, 0.1), (16, -1.0), (16, 0.0)):
        keep_timing(path, [StepPoint(num_tokens, step_time_s)])
        assert load_timing(path) is None
    keep_timing(path, [StepPoint(32, 0.1), StepPoint(16, 0.1)])
    assert load_timing(path) is None
