"""Speed of the reference executor on the default model: load, prefill, decode at 1, 8 and 32 streams.

The floor is the model's matrix products alone, on as many rows, measured in the same run: what no amount of tidying
around them could beat.

Run: python -m benchmarks.reference_executor
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.result_file import spread, take_no_options, write_result
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.core.request import RequestId, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import ScheduledRequestData, StepPlan, TableEdit
from kvist.execution.loading import load_model_executor
from kvist.execution.model_executor import ModelExecutor
from kvist.execution.reference.load_weights import load_weights
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.fetch import resolve_model

REFERENCE = EngineConfig(executor=ExecutorConfig(executor="reference"))
MODEL = "smollm2-135m-instruct"
PROMPT_TOKENS = 512
CONTEXT_TOKENS = 256
NUM_STREAMS = (1, 8, 32)
NUM_STEPS = 10
NUM_REPEATS = 5
NUM_WARM_UP = 1
BLOCK_SIZE = 16


def wall_s(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def new_request(name: str, num_tokens: int, first_block: int, room: int) -> tuple[ScheduledRequestData, TableEdit]:
    request_id, token_ids = RequestId(name), [(31 * i + 7) % 40_000 for i in range(num_tokens)]
    sampling = SamplingParams(temperature=0, max_tokens=None)
    data = ScheduledRequestData(request_id, pack_token_ids(token_ids), num_tokens, sampling, 0, ())
    num_blocks = -(-(num_tokens + room) // BLOCK_SIZE)
    return data, TableEdit(request_id, 0, list(range(first_block, first_block + num_blocks)))


def prefill(executor: ModelExecutor, name: str, num_tokens: int, first_block: int = 0) -> None:
    data, table = new_request(name, num_tokens, first_block, NUM_STEPS * (NUM_REPEATS + NUM_WARM_UP) + 1)
    plan = StepPlan(
        0, [data.request_id], [0], [num_tokens], [True], num_tokens, new_requests=[data], table_edits=[table]
    )
    executor.finish_step(executor.begin_step(plan))


def decode_steps_s(executor: ModelExecutor, num_streams: int) -> list[float]:
    """Seconds of one step, averaged over NUM_STEPS, for each repeat after the warm-up."""
    names = [RequestId(f"stream{i}") for i in range(num_streams)]
    for i, name in enumerate(names):
        prefill(executor, name, CONTEXT_TOKENS, first_block=i * 24)
    position = CONTEXT_TOKENS
    times = []
    for _ in range(NUM_WARM_UP + NUM_REPEATS):
        start = time.perf_counter()
        for _ in range(NUM_STEPS):
            ones, yes = [1] * num_streams, [True] * num_streams
            plan = StepPlan(0, names, [position] * num_streams, ones, yes, num_streams)
            executor.finish_step(executor.begin_step(plan))
            position += 1
        times.append((time.perf_counter() - start) / NUM_STEPS)
    return times[NUM_WARM_UP:]


def floor_s(matrices: list[NDArray[np.float32]], num_rows: int) -> float:
    """Median seconds of every matrix once with `num_rows` rows."""
    inputs = {m.shape[1]: np.ones((num_rows, m.shape[1]), np.float32) for m in matrices}
    return float(np.median([wall_s(lambda: [inputs[m.shape[1]] @ m.T for m in matrices]) for _ in range(NUM_REPEATS)]))


def main() -> None:
    checkpoint = open_checkpoint(Path(resolve_model(MODEL)))
    load_times = [wall_s(lambda: load_model_executor(checkpoint, REFERENCE, num_blocks=1024)) for _ in range(3)]
    executor = load_model_executor(checkpoint, REFERENCE, num_blocks=1024)
    weights = load_weights(checkpoint, read_model(checkpoint))
    matrices = [w for layer in weights.layers for w in layer.values() if w.ndim == 2] + [weights.shared["embed"]]
    prefill_times = [wall_s(lambda: prefill(executor, "prompt", PROMPT_TOKENS)) for _ in range(NUM_REPEATS + 1)][1:]
    results: dict[str, object] = {
        "load": spread(load_times, "s"),
        f"prefill of {PROMPT_TOKENS} tokens": spread([PROMPT_TOKENS / t for t in prefill_times], "tokens/s"),
    }
    for num_streams in NUM_STREAMS:
        times = decode_steps_s(executor, num_streams)
        results[f"decode at {num_streams} streams"] = spread([num_streams / t for t in times], "tokens/s")
        share = floor_s(matrices, num_streams) / float(np.median(times))
        results[f"matrix products' share at {num_streams} streams"] = round(share, 3)
    limits = "one stream reads every float32 weight per token; more streams add gathering K and V, row by row"
    print(write_result("reference_executor", results, seed=None, num_warm_up=NUM_WARM_UP, limits=limits))


if __name__ == "__main__":
    take_no_options(__doc__)
    main()
