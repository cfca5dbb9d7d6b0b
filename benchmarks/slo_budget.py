"""The policy slo_budget against fixed chunks on the frozen loads: in virtual time on two machines, and in real time.

Virtual: every load, at its rate of the capacity that chunked_prefill with 512 tokens has; targets of 5 times the
unloaded TTFT and 3 times the unloaded TPOT. The scheduler has to learn the machine. Two machines: a small model on two
cores, where every token costs; a GPU, where up to some hundred tokens cost next to nothing.

Real: see benchmarks/slo_budget_real.py.

Run: python -m benchmarks.slo_budget
     python -m benchmarks.slo_budget --real [LOAD ...] [--repeats 2] [--minutes 12]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.result_file import RESULTS, write_result
from benchmarks.slo_budget_real import Result, measure_loads, service_level
from kvist.bench.policy_comparison import measure_capacity, served_requests
from kvist.bench.policy_engines import Variant, VirtualPolicyEngine
from kvist.bench.unloaded_latency import levels_of, targets_of
from kvist.config.scheduler_config import SchedulerConfig
from kvist.costmodel.linear_step_time import LinearStepTime
from kvist.metrics.served_request import ServedRequest
from kvist.workload.load_file import frozen_loads

MACHINES = {
    "small model on two cores": LinearStepTime(
        per_step_s=0.008, per_token_s=5e-4, per_decode_key_s=1.5e-6, per_prefill_pair_s=2e-7
    ),
    "GPU": LinearStepTime(per_step_s=0.008, per_token_s=6e-5, per_decode_key_s=2e-8, per_prefill_pair_s=2e-9),
}
FIXED_CHUNKS = (16, 64, 256, 1024, 2048)
LARGEST = 2048
MAX_TOKENS = 8192  # of a request
NUM_BLOCKS = 8000
LIMITS = (
    "virtual: the time that prompts leave to streams; a request that is too late when it comes cannot be saved by any "
    "order. Real: what else runs on the machine, and how few requests a short run has"
)


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


def stored_results() -> Result:
    path = RESULTS / "slo_budget.json"
    results: Result = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", nargs="*", metavar="LOAD", help="in real time, on these loads (default: on all)")
    parser.add_argument("--repeats", type=int, default=2, metavar="N", help="of each policy on each load (default: 2)")
    parser.add_argument("--minutes", type=float, default=12.0, metavar="M", help="begin no run after (default: 12)")
    arguments = parser.parse_args()
    results = stored_results()
    if arguments.real is None:
        results["virtual"] = virtual()
    else:
        measured = measure_loads(arguments.real, arguments.repeats, 60.0 * arguments.minutes)
        results["real"] = {**results.get("real", {}), **measured}
    write_result("slo_budget", results, seed=None, num_warm_up=0, limits=LIMITS)


if __name__ == "__main__":
    main()
