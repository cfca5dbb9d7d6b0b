"""Mooncake's comparison of scheduling strategies (FAST'25), simulated: TTFT on its conversation trace, 5 + 5 hosts.

The paper's means are 19.65 s (random), 5.27 (load balancing), 3.58 (local cache-aware) and 3.07 (global cache-aware),
on hosts and a load that it does not state in full: what must come out here is the order and the shape.

Run: python -m benchmarks.cluster_routing [ROUTER ...]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from typing import Any

from benchmarks.result_file import RESULTS, write_result
from kvist.config.cluster_config import ROUTERS
from kvist.metrics.percentiles import percentile
from kvist.repro.mooncake_cluster import STEP_TIME, mooncake_cluster
from kvist.simulator.cluster_simulation import simulate
from kvist.workload.recorded_load import read_shipped_trace

PUBLISHED_MEAN_TTFT_S = {"random": 19.65, "least_loaded": 5.27, "cache_aware": 3.58, "kv_centric": 3.07}
NUM_PREFILL = NUM_DECODE = 5


def measure(router: str) -> dict[str, Any]:
    """Simulate the whole trace. Any: what JSON holds."""
    gc.disable()  # as kvist simulate does
    records = read_shipped_trace("mooncake_conversation")
    result = simulate(mooncake_cluster(NUM_PREFILL, NUM_DECODE, router), records, STEP_TIME)
    done = [request for request in result.requests if request.outcome == "finished"]
    ttfts = sorted(request.ttft_ns / 1e9 for request in done if request.ttft_ns is not None)
    return {
        "completed": len(done),
        "published_mean_ttft_s": PUBLISHED_MEAN_TTFT_S.get(router),
        "mean_ttft_s": statistics.fmean(ttfts),
        "median_ttft_s": percentile(ttfts, 50.0),
        "p90_ttft_s": percentile(ttfts, 90.0),
        "cache_hit_share": sum(r.num_cached_tokens for r in done) / sum(r.num_prompt_tokens for r in done),
        "fetched_tokens": sum(r.num_fetched_tokens for r in done),
        "prefill_utilization": statistics.fmean(
            replica.busy_ns / result.end_ns for replica in result.replicas[:NUM_PREFILL]
        ),
        "event_digest": result.digest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("routers", nargs="*", metavar="ROUTER", choices=[*ROUTERS, []], help=", ".join(ROUTERS))
    chosen = parser.parse_args().routers or list(ROUTERS)
    path = RESULTS / "cluster_routing.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
    for router in chosen:
        results[router] = measure(router)
        sys.stderr.write(f"{router}: mean TTFT {results[router]['mean_ttft_s']:.2f} s\n")
        write_result(
            "cluster_routing",
            {name: results[name] for name in ROUTERS if name in results},
            seed=0,
            num_warm_up=0,
            limits="step times are a linear model from the paper's count of operations, not measurements of its hosts",
        )


if __name__ == "__main__":
    main()
