"""DistServe (OSDI'24): prefill and decode on devices of their own. Placements, goodput and queueing, by simulation."""

from __future__ import annotations

from kvist.planner.evaluation import Effort
from kvist.repro.distserve_13b import llama_13b, motivation
from kvist.repro.distserve_opt import opt_13b, opt_66b
from kvist.repro.distserve_placement import DEVICE, FULL_REQUESTS, SEED
from kvist.repro.distserve_queueing import queueing_rows
from kvist.repro.result import ReproResult
from kvist.repro.setting import ReproSetting

FULL = Effort(num_lifetimes=5.0, min_requests=FULL_REQUESTS, tolerance=0.03)
QUICK = Effort(num_lifetimes=2.0, min_requests=300, tolerance=0.05)


def run(setting: ReproSetting) -> ReproResult:
    effort = QUICK if setting.is_quick else FULL
    small, small_rows, small_plot = opt_13b(setting, effort)
    rows = [
        *small_rows,
        *opt_66b(setting, effort),
        *motivation(setting, effort),
        *llama_13b(setting, effort),
        *queueing_rows(is_quick=setting.is_quick),
    ]
    return ReproResult(
        name="distserve",
        title="DistServe: prefill and decode on devices of their own",
        setup=(
            f"Simulated: kvist's schedulers, caches and router on {DEVICE}, NVLink inside hosts, 25 Gb/s between them. "
            "Step times of OPT are those that DistServe's authors fitted to their engine and to the vLLM of 2023; of "
            "LLaMA-13B kvist's own, fitted to engines of today. Goodput: the largest rate at which 90% of requests "
            f"keep both targets. Seed {SEED}."
        ),
        executor="simulation",
        size=setting.size,
        repeats=1,
        rows=rows,
        plots=[small_plot],
        notes=[
            f"Looked at for OPT-13B: {', '.join(each.candidate.text for each in small.judged)}.",
            "Short runs flatter: a queue that grows is seen only after hundreds of requests. With runs of 160 requests "
            "pairs of 4 GPUs led for OPT-13B.",
            "Which placement is best for OPT-13B depends on the tail of the lengths, which the paper does not state: "
            "the published one is ahead with prompts up to 1,792 or 2,000 tokens and behind with prompts up to 1,536. "
            "In all three it is its single decoding GPU that is full.",
        ],
    )
