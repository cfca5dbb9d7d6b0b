"""How well the engine foretells its own steps: each step of frozen loads is predicted, and only then learnt from.

The fit starts from its prior and sees each step once, in order: every error is of a step that it has not seen. Errors
are relative to the measured time. For comparison: without the level that follows a shared machine, and a batch fit of
the same six counts to the first half of the steps, judged on the second.

Run: python -m benchmarks.step_time_model [LOAD ...]; a call replaces the stored figures of its loads.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.result_file import RESULTS, take_no_options, write_result
from kvist.bench.loaded_model import load_model
from kvist.bench.policy_engines import RealPolicyEngine, Variant
from kvist.config.engine_config import EngineConfig
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.costmodel.online_step_time import OnlineStepTimeModel
from kvist.costmodel.step_work import StepWork
from kvist.weights.fetch import resolve_model
from kvist.workload.load_file import frozen_loads
from kvist.workload.shortening import shortened

RUNS = (  # load, share of it, requests per second, policy, token budget
    ("chat", 0.06, 4.0, "chunked_prefill", 128),
    ("long_and_short", 0.03, 1.5, "chunked_prefill", 256),
    ("changing", 0.07, 2.0, "split_fuse", 512),
    ("chat_multi_turn", 0.08, 4.0, "slo_budget", 512),
)
NUM_LEARNING_STEPS = 50
Steps = list[tuple[StepWork, float]]


class LevelLess(OnlineStepTimeModel):
    """Without the level."""

    def _latest_level(self) -> float:
        return 1.0


def record_steps(names: Sequence[str]) -> dict[str, Steps]:
    model_config = ModelConfig(max_model_len=8192)
    scheduler = SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=64)
    path = resolve_model(model_config.model, revision=None, progress=lambda *_: None)
    model = load_model(EngineConfig(model=model_config, scheduler=scheduler), path, num_blocks=6000)
    engine = RealPolicyEngine(model, scheduler, num_blocks=6000)
    recorded = {}
    for name, share, rate, policy, budget in RUNS:
        if names and name not in names:
            continue
        records = shortened(frozen_loads().load(name), share).records(capacity_per_s=rate)
        run = engine.play(Variant(policy, budget), records, None)
        times = [step.step_time_s for step in run.steps]
        recorded[f"{name}, {policy} {budget}"] = list(zip(run.works, times, strict=True))
    model.close()
    return recorded


def judge(model: OnlineStepTimeModel, steps: Steps) -> dict[str, float]:
    """Errors of `steps` after the first ones, each predicted and then learnt from."""
    errors, num_above = [], 0
    for number, (work, seconds) in enumerate(steps):
        if number >= NUM_LEARNING_STEPS:
            predicted_s = model.predict_s(work)
            errors.append(predicted_s / seconds - 1.0)
            num_above += seconds > predicted_s + model.margin_s(work)
        model.observe(work, seconds)
    return summary(errors) | {"longer_than_predicted_with_margin": num_above / len(errors)}


def summary(errors: Sequence[float]) -> dict[str, float]:
    sizes = sorted(map(abs, errors))
    return {
        "median_relative_error": statistics.median(sizes),
        "p90_relative_error": sizes[int(0.9 * (len(sizes) - 1))],
        "median_signed_error": statistics.median(errors),
        "num_steps": len(errors),
    }


def judge_batch(steps: Steps) -> dict[str, float]:
    """A fit to the first half, without forgetting and level, on the second."""
    model = LevelLess()
    half = len(steps) // 2
    for work, seconds in steps[:half]:
        model.observe(work, seconds)
    return summary([model.predict_s(work) / seconds - 1.0 for work, seconds in steps[half:]])


def main() -> None:
    stored = RESULTS / "step_time_model.json"
    results: dict[str, object] = json.loads(stored.read_text(encoding="utf-8"))["results"] if stored.exists() else {}
    for name, steps in record_steps(sys.argv[1:]).items():
        results[name] = {
            "online": judge(OnlineStepTimeModel(), steps),
            "without_level": judge(LevelLess(), steps),
            "fit_to_first_half": judge_batch(steps),
        }
    path = write_result(
        "step_time_model",
        results,
        seed=None,
        num_warm_up=NUM_LEARNING_STEPS,
        limits=(
            "what else runs on the machine: steps of one and the same work differ by this much from each other. The "
            "six counts are enough where the machine is quiet; the level is what follows one that is not."
        ),
    )
    sys.stdout.write(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    take_no_options(__doc__)
    main()
