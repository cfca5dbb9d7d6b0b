"""The policy slo_budget against fixed chunks on the frozen loads: in virtual time on two machines, and in real time.

Virtual: every load, at its rate of the capacity that chunked_prefill with 512 tokens has; targets of 5 times the
unloaded TTFT and 3 times the unloaded TPOT. The scheduler has to learn the machine. Two machines: a small model on two
cores, where every token costs; a GPU, where up to some hundred tokens cost next to nothing.

Real: one load, the variants in turn, as `kvist bench policies` does. A quarter of `changing` takes 20 s a run and five
minutes in all.

Run: python -m benchmarks.slo_budget
     python -m benchmarks.slo_budget --real changing --scale 0.25 [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.result_file import RESULTS, write_result
from kvist.bench.loaded_model import load_model
from kvist.bench.policy_comparison import compare_policies, measure_capacity, served_requests
from kvist.bench.policy_engines import RealPolicyEngine, Variant, VirtualPolicyEngine
from kvist.bench.unloaded_latency import levels_of, targets_of
from kvist.config.engine_config import EngineConfig
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.costmodel.linear_step_time import LinearStepTime
from kvist.metrics.served_request import ServedRequest
from kvist.weights.fetch import resolve_model
from kvist.workload.load_file import ServiceLevel, frozen_loads
from kvist.workload.shortening import shortened

MACHINES = {
    "small model on two cores": LinearStepTime(
        per_step_s=0.008, per_token_s=5e-4, per_decode_key_s=1.5e-6, per_prefill_pair_s=2e-7
    ),
    "GPU": LinearStepTime(per_step_s=0.008, per_token_s=6e-5, per_decode_key_s=2e-8, per_prefill_pair_s=2e-9),
}
FIXED_CHUNKS = (16, 64, 256, 1024, 2048)
REAL_CHUNKS = (64, 256, 1024)
REAL_MAX_TOKENS = 2048  # of which unloaded latency is measured
CAPACITY_DRAFT = 2.0  # requests per second of the load that capacity is measured with
LARGEST = 2048
MAX_TOKENS = 8192  # of a request
NUM_BLOCKS = 8000
LIMITS = (
    "virtual: the time that prompts leave to streams; a request that is too late when it comes cannot be saved by any "
    "order. Real: what else runs on the machine, and how few requests a short run has"
)
Result = dict[str, Any]  # Any: what JSON holds


def service_level() -> ServiceLevel:
    level = frozen_loads().service_level
    assert level is not None
    return level


def figures(requests: Sequence[ServedRequest], elapsed_s: float) -> Result:
    ratios = [tpot_s / (one.targets.tpot_s or 1.0) for one in requests for tpot_s in one.tpots_s()]
    gaps_ms = sorted(gap * 1e3 for one in requests for gap in one.gaps_s())
    num_good = sum(one.meets_targets() for one in requests)
    return {
        "attainment": num_good / len(requests),
        "goodput_per_s": num_good / elapsed_s,
        "output_tokens_per_s": sum(one.num_output_tokens for one in requests) / elapsed_s,
        "share_beyond_tpot": sum(ratio > 1.0 + 1e-9 for ratio in ratios) / max(len(ratios), 1),
        "worst_tpot_over_target": max(ratios, default=0.0),
        "gap_p99_ms": gaps_ms[int(0.99 * (len(gaps_ms) - 1))],
        "ttft_median_ms": statistics.median(one.ttft_s or 0.0 for one in requests) * 1e3,
    }


def virtual() -> Result:
    results: Result = {}
    variants = [*(Variant("chunked_prefill", size) for size in FIXED_CHUNKS), Variant("slo_budget", LARGEST)]
    for machine, step_times in MACHINES.items():
        scheduler = SchedulerConfig(max_num_seqs=128)
        engine = VirtualPolicyEngine(step_times, scheduler, num_blocks=NUM_BLOCKS, max_token_budget=LARGEST)
        targets = targets_of(levels_of(service_level()), engine.unloaded(max_tokens=MAX_TOKENS))
        for name, load in frozen_loads().loads.items():
            if load.kv_cache_tokens_fraction is not None:
                continue  # the same requests as another one, in a pool that decides more than the policy does
            capacity = measure_capacity(engine, load.records(capacity_per_s=1.0), LARGEST)
            records = load.records(capacity_per_s=capacity)
            runs = {}
            for variant in variants:
                run = engine.play(variant, records, targets)
                runs[variant.label] = figures(served_requests(run), run.elapsed_s)
            results[f"{name}, {machine}"] = compared(runs)
            print(name, machine, json.dumps(results[f"{name}, {machine}"]["summary"]), file=sys.stderr, flush=True)
    return results


def compared(runs: dict[str, Result]) -> Result:
    ours = runs[Variant("slo_budget", LARGEST).label]
    fixed = [run for label, run in runs.items() if label.startswith("chunked")]
    return {
        "summary": {
            "attainment": ours["attainment"],
            "best_fixed_attainment": max(run["attainment"] for run in fixed),
            "goodput_ratio": ours["goodput_per_s"] / max(*(run["goodput_per_s"] for run in fixed), 1e-9),
            "a_fixed_chunk_keeps_every_tpot": any(run["share_beyond_tpot"] == 0.0 for run in fixed),
            "share_beyond_tpot": ours["share_beyond_tpot"],
        },
        "runs": runs,
    }


def real(name: str, scale: float, num_repeats: int) -> Result:
    """Capacity and unloaded latency are measured first; then the variants take turns, another one first each time."""
    model_config = ModelConfig(max_model_len=MAX_TOKENS)
    scheduler = SchedulerConfig(max_num_batched_tokens=max(REAL_CHUNKS), max_num_seqs=64)
    path = resolve_model(model_config.model, revision=None, progress=lambda *_: None)
    model = load_model(EngineConfig(model=model_config, scheduler=scheduler), path, num_blocks=NUM_BLOCKS)
    engine = RealPolicyEngine(model, scheduler, num_blocks=NUM_BLOCKS)
    load = shortened(frozen_loads().load(name), scale)
    say("measuring what requests take alone, and the capacity")
    unloaded = engine.unloaded(max_tokens=REAL_MAX_TOKENS)
    capacity = measure_capacity(engine, load.records(capacity_per_s=CAPACITY_DRAFT), 512)
    variants = [*(Variant("chunked_prefill", size) for size in REAL_CHUNKS), Variant("slo_budget", max(REAL_CHUNKS))]
    repeats: list[Result] = []
    outputs_are_equal = True
    for repeat in range(num_repeats):
        first = repeat % len(variants)
        comparison = compare_policies(
            engine,
            [*variants[first:], *variants[:first]],
            load.records(capacity_per_s=capacity),
            capacity_per_s=capacity,
            targets_of=targets_of(levels_of(service_level()), unloaded),
            num_repeats=1,
            say=say,
        )
        repeats.append({runs.variant.label: runs.results[0] for runs in comparison.runs})
        outputs_are_equal &= comparison.equal_outputs
    model.close()
    done: Result = {
        "capacity_per_s": capacity,
        "unloaded": unloaded.as_document(),
        "equal_outputs": outputs_are_equal,
        "summary": real_summary(repeats),
        "repeats": repeats,
    }
    print(json.dumps(done["summary"], indent=1))
    return done


def real_summary(repeats: Sequence[Result]) -> Result:
    """Medians over the repeats with their range; the best fixed chunk is that of the best median."""

    def of(label: str, field: str) -> list[float]:
        return sorted(repeat[label][field] for repeat in repeats)

    ours = Variant("slo_budget", max(REAL_CHUNKS)).label
    summary: Result = {}
    for field in ("slo_attainment", "request_goodput"):
        medians = {label: statistics.median(of(label, field)) for label in repeats[0]}
        best = max((label for label in medians if label != ours), key=lambda label: medians[label])
        ratios = [repeat[ours][field] / max(repeat[best][field], 1e-9) for repeat in repeats]
        summary[field] = {
            **{
                label: {"median": medians[label], "range": [of(label, field)[0], of(label, field)[-1]]}
                for label in medians
            },
            "best_fixed": best,
            "ours_over_best_fixed": {"median": statistics.median(ratios), "range": [min(ratios), max(ratios)]},
        }
    return summary


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def stored_results() -> Result:
    path = RESULTS / "slo_budget.json"
    results: Result = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", metavar="LOAD")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    results = stored_results()
    if arguments.real is None:
        results["virtual"] = virtual()
    else:
        key = f"{arguments.real}, {arguments.scale:g} of it"
        results.setdefault("real", {})[key] = real(arguments.real, arguments.scale, arguments.repeats)
    write_result("slo_budget", results, seed=None, num_warm_up=0, limits=LIMITS)


if __name__ == "__main__":
    main()
