"""How fast clusters are simulated: Mooncake's conversation trace, 16 replicas, disaggregated, KV-centric; one core.

CPU time of the first quarter, the first half and all of its 12,031 requests, once each.

Run: python -m benchmarks.simulator_speed
"""

from __future__ import annotations

import gc
import sys
import time

from benchmarks.result_file import take_no_options, write_result
from kvist.repro.mooncake_cluster import STEP_TIME, mooncake_cluster
from kvist.simulator.cluster_simulation import simulate
from kvist.workload.recorded_load import read_shipped_trace


def main() -> None:
    gc.disable()  # as kvist simulate does
    records = read_shipped_trace("mooncake_conversation")
    config = mooncake_cluster(8, 8, "kv_centric")
    results: dict[str, object] = {}
    for label, count in (("1x", len(records) // 4), ("2x", len(records) // 2), ("4x", len(records))):
        start_s = time.process_time()
        result = simulate(config, records[:count], STEP_TIME)
        seconds = time.process_time() - start_s
        num_steps = sum(replica.num_steps for replica in result.replicas)
        num_tokens = sum(len(request.token_times_ns) for request in result.requests)
        results[label] = {
            "requests": count,
            "output_tokens": num_tokens,
            "steps": num_steps,
            "planned_steps": sum(replica.num_planned_steps for replica in result.replicas),
            "cpu_s": seconds,
            "steps_per_s": num_steps / seconds,
            "output_tokens_per_s": num_tokens / seconds,
            "virtual_s_per_s": result.end_ns / 1e9 / seconds,
            "event_digest": result.digest(),
        }
        sys.stderr.write(f"{label}: {seconds:.1f} s\n")
    path = write_result(
        "simulator_speed",
        results,
        seed=None,
        num_warm_up=0,
        limits=(
            "the interpreter: planning and applying the steps that are not taken in bulk, hashing prompts, predicting "
            "step times, routing; none of them dominates"
        ),
    )
    sys.stdout.write(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    take_no_options(__doc__)
    main()
