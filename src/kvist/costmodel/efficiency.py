"""What an engine reaches on a device, in a few numbers. All else is counted or read off data sheets."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares are of the data sheet's peak, times are in seconds. Defaults are the priors of the fit.

    gemm: of the peak, for products with many rows. gemm_half_rows: rows at which half of that is reached.
    memory: of the bandwidth, for weights and activations. prefill_attention: of the peak, for many queries.
    decode_attention: of the bandwidth, for keys and values read by single queries. gqa_penalty: extra time of that for
    each further query head that shares a KV head (kernels of before 2024 read keys once per query head).
    layer_s: what the kernels of a layer wait for each other. launch_s: what the host takes to launch a layer's kernels,
    hidden behind the device's work or setting the pace; prefill_launch_s: the same in a step with prompts.
    overflow_token_s: for each prompt token beyond those that early engines reserved memory for.
    host_s, sequence_s, sequence_pair_s: the host's work per step, per sequence in it and per pair of these.
    request_s: of a request outside steps, before its first token is seen.
    all_reduce_s: latency of one, for each doubling of the ranks. link: of the link's bandwidth.
    """

    gemm: float = 0.68
    gemm_half_rows: float = 60.0
    memory: float = 0.82
    prefill_attention: float = 0.4
    decode_attention: float = 0.75
    gqa_penalty: float = 0.02
    layer_s: float = 15e-6
    launch_s: float = 30e-6
    prefill_launch_s: float = 60e-6
    overflow_token_s: float = 1e-6
    host_s: float = 1.5e-3
    request_s: float = 5e-3
    sequence_s: float = 12e-6
    sequence_pair_s: float = 2e-8
    all_reduce_s: float = 8e-6
    link: float = 0.5

    def logs(self) -> list[float]:
        """Logarithms of all numbers, in the order of the fields: the space in which they are fitted."""
        return [math.log(getattr(self, field.name)) for field in fields(self)]

    def with_logs(self, logs: list[float]) -> Efficiency:
        names = [field.name for field in fields(self)]
        return replace(self, **dict(zip(names, map(math.exp, logs), strict=True)))


EAGER = Efficiency(
    launch_s=4e-4,
    prefill_launch_s=5e-4,
    overflow_token_s=2e-5,
    host_s=4e-3,
    sequence_s=1.5e-4,
    sequence_pair_s=1e-6,
    gqa_penalty=0.1,
    all_reduce_s=2e-5,
    link=0.3,
)
"""Priors for engines that launch each kernel from Python and sum with NCCL, as most did before 2024."""
