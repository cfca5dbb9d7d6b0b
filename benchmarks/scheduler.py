"""What scheduling costs without a model: `schedule` + `update_from_output` beside a tree of 100k blocks.

CPU time of one step, median over steps: decoding requests alone, at one and two steps in flight; with 1,000 requests
that wait for memory, in each queue order; and steps that each start and finish requests of a shared prefix.

Run: python -m benchmarks.scheduler
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from array import array
from collections import deque

from benchmarks.result_file import spread, take_no_options, write_result
from kvist.config.scheduler_config import QUEUE_ORDERS, SchedulerConfig
from kvist.core.request import PUBLIC_DOMAIN, NewRequest, RequestId, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.kvcache.kv_cache import KVCache
from kvist.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
TREE_BLOCKS = 100_000
PATH_BLOCKS = 500  # of each cached prompt in the tree
NUM_RUNNING = 256
NUM_WAITING = 1_000
TOKEN_BUDGET = 2_048
NUM_STEPS = 200
NUM_REPEATS = 7
NUM_WARM_UP_STEPS = 60


class Load:
    """One scheduler over a filled tree, with an executor that answers every step with the same token."""

    def __init__(
        self, *, num_free_blocks: int, num_tree_blocks: int = TREE_BLOCKS, depth: int = 1, queue_order: str = "fcfs"
    ) -> None:
        self._cache = KVCache(num_blocks=num_tree_blocks + num_free_blocks, block_size=BLOCK_SIZE)
        self._fill_tree(num_tree_blocks)
        config = SchedulerConfig(
            max_num_seqs=NUM_RUNNING, max_steps_in_flight=depth, queue_order=queue_order, max_num_queued_reqs=4_000
        )
        self._scheduler = Scheduler(
            config,
            self._cache,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=TOKEN_BUDGET,
            max_model_len=BLOCK_SIZE * self._cache.num_total_blocks,
        )
        self._depth = depth
        self._open: deque[StepPlan] = deque()
        self._now = 0.0
        self._num_added = 0

    def _fill_tree(self, num_blocks: int) -> None:
        for first in range(0, num_blocks * BLOCK_SIZE, PATH_BLOCKS * BLOCK_SIZE):
            tokens = array("i", range(first, first + PATH_BLOCKS * BLOCK_SIZE)).tobytes()
            match = self._cache.match(PUBLIC_DOMAIN, tokens, max_tokens=1)
            table = self._cache.admit(RequestId(f"tree{first}"), PUBLIC_DOMAIN, tokens, match)
            self._cache.grow(table, num_tokens=PATH_BLOCKS * BLOCK_SIZE, write_from=0)
            self._cache.commit(table, tokens, num_computed_tokens=PATH_BLOCKS * BLOCK_SIZE)
            self._cache.release(table)

    def add(self, prompt: list[int], *, max_tokens: int) -> None:
        self._num_added += 1
        request = NewRequest(
            request_id=RequestId(f"r{self._num_added}"),
            prompt_token_ids=pack_token_ids(prompt),
            sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            arrival_time_s=self._now,
        )
        self._scheduler.add_request(request, self._now)

    def step(self) -> float:
        """Run one step; return the CPU seconds of schedule + update."""
        start = time.process_time()
        plan = self._scheduler.schedule(self._now)
        spent = time.process_time() - start
        if plan is not None:
            self._open.append(plan)
            if len(self._open) < self._depth:
                return self.step()
        oldest = self._open.popleft()
        result = StepResult(
            step_id=oldest.step_id, sampled_token_ids=[[7] if samples else [] for samples in oldest.samples]
        )
        self._now += 0.05
        start = time.process_time()
        self._scheduler.update_from_output(oldest, result, self._now)
        return spent + time.process_time() - start

    def measure_ms(self) -> list[float]:
        """Medians of NUM_STEPS steps, one per repeat."""
        for _ in range(NUM_WARM_UP_STEPS):
            self.step()
        gc.collect()
        return [statistics.median(self.step() for _ in range(NUM_STEPS)) * 1000 for _ in range(NUM_REPEATS)]


def own_prompt(number: int, num_tokens: int) -> list[int]:
    """A prompt that shares nothing with the tree or with other numbers."""
    return [-number - 1, *range(num_tokens - 1)]


def measure_decoding(depth: int) -> list[float]:
    load = Load(num_free_blocks=30_000, depth=depth)
    for number in range(NUM_RUNNING):  # lengths are spread so that as many blocks fill in each step
        load.add(own_prompt(number, 64 + number % BLOCK_SIZE), max_tokens=30_000)
    return load.measure_ms()


def measure_waiting(queue_order: str) -> list[float]:
    """Half the places are taken, in a pool without a tree; nothing that waits fits into what they leave free."""
    load = Load(num_free_blocks=4_000, num_tree_blocks=0, queue_order=queue_order)
    for number in range(NUM_RUNNING // 2):
        load.add(own_prompt(number, 64 + number % BLOCK_SIZE), max_tokens=30_000)
    for _ in range(NUM_WARM_UP_STEPS):
        load.step()
    for number in range(NUM_WAITING):
        load.add(own_prompt(1_000 + number, 55_000), max_tokens=10)
    return load.measure_ms()


def measure_turnover() -> list[float]:
    """Every step starts one request with 4,000 cached tokens and 100 new ones, and one ends."""
    load = Load(num_free_blocks=30_000)
    cached = list(range(4_000))
    times_ms: list[float] = []
    for repeat in range(NUM_REPEATS + 1):
        steps = []
        for number in range(NUM_STEPS):
            load.add([*cached, *own_prompt(repeat * NUM_STEPS + number, 100)], max_tokens=64)
            steps.append(load.step())
        times_ms.append(statistics.median(steps) * 1000)
    return times_ms[1:]  # the first fills the running set


def main() -> None:
    results: dict[str, object] = {
        "decode_256_running": spread(measure_decoding(depth=1), "ms per step"),
        "decode_256_running_two_in_flight": spread(measure_decoding(depth=2), "ms per step"),
        "start_and_finish_one_of_64": spread(measure_turnover(), "ms per step"),
    }
    for queue_order in QUEUE_ORDERS:
        results[f"decode_128_running_1000_waiting_{queue_order}"] = spread(measure_waiting(queue_order), "ms per step")
    path = write_result(
        "scheduler",
        results,
        seed=None,
        num_warm_up=NUM_WARM_UP_STEPS,
        limits=(
            "per decoding request about 0.5 us to plan its row and 0.8 us to apply its token and make its event; "
            "a block that fills (1 in 16) costs about 15 us in commit and grow. The interpreter is the limit: "
            "the loops hold only attribute reads and list appends."
        ),
    )
    sys.stdout.write(f"{path.read_text(encoding='utf-8')}")


if __name__ == "__main__":
    take_no_options(__doc__)
    main()
