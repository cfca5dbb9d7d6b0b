"""Speed of the native executor, the default, on the default model: load, prefill, decode at 1, 8 and 32 streams.

The same steps as benchmarks/reference_executor.py takes, so that the two can be compared.

Run: python -m benchmarks.native_executor
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.reference_executor import (
    MODEL,
    NUM_REPEATS,
    NUM_STREAMS,
    NUM_WARM_UP,
    PROMPT_TOKENS,
    decode_steps_s,
    prefill,
    wall_s,
)
from benchmarks.result_file import spread, take_no_options, write_result
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.execution.loading import load_model_executor
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.fetch import resolve_model

NATIVE = EngineConfig(executor=ExecutorConfig(executor="native"))


def main() -> None:
    checkpoint = open_checkpoint(Path(resolve_model(MODEL)))
    load_times = [wall_s(lambda: load_model_executor(checkpoint, NATIVE, num_blocks=1024)) for _ in range(3)]
    executor = load_model_executor(checkpoint, NATIVE, num_blocks=1024)
    executor.resize(PROMPT_TOKENS)
    prefill_times = [wall_s(lambda: prefill(executor, "prompt", PROMPT_TOKENS)) for _ in range(NUM_REPEATS + 1)][1:]
    results: dict[str, object] = {
        "executor": executor.description,
        "load": spread(load_times, "s"),
        f"prefill of {PROMPT_TOKENS} tokens": spread([PROMPT_TOKENS / t for t in prefill_times], "tokens/s"),
    }
    for num_streams in NUM_STREAMS:
        times = decode_steps_s(executor, num_streams)
        results[f"decode at {num_streams} streams"] = spread([num_streams / t for t in times], "tokens/s")
    limits = "not profiled here; the threads share their cores with whatever else the machine runs"
    print(write_result("native_executor", results, seed=None, num_warm_up=NUM_WARM_UP, limits=limits))


if __name__ == "__main__":
    take_no_options(__doc__)
    main()
