"""What an engine reaches on a device, in eight fitted numbers. All else is counted, on data sheets or constant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

KindName = Literal["graphs", "launches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """How engines bring a step to the device: constants that are the same on all devices.

    launches: kernels are launched one by one while the device computes; else a step is replayed as a graph.
    link: share of the link's bandwidth that sums reach. all_reduce_s: latency of a sum, for each doubling of the ranks,
    and all_reduce_layers: the same as a multiple of Efficiency.layer_s. gqa_penalty: extra time of decode attention for
    each further query head that shares a KV head (kernels of before 2024 read keys once per query head).
    prefill_launch_s: what launching a layer takes at least in a step with prompts. overflow_token_s: of the host, for
    each prompt token beyond those that early engines reserved memory for.
    """

    name: KindName
    launches: bool
    link: float
    all_reduce_s: float = 0.0
    all_reduce_layers: float = 0.0
    gqa_penalty: float = 0.0
    prefill_launch_s: float = 0.0
    overflow_token_s: float = 0.0


GRAPHS = EngineKind(name="graphs", launches=False, link=0.8, all_reduce_layers=0.5)
LAUNCHES = EngineKind(
    name="launches",
    launches=True,
    link=0.3,
    all_reduce_s=2e-5,
    gqa_penalty=0.1,
    prefill_launch_s=5e-4,
    overflow_token_s=2e-5,
)
"""Engines that launch each kernel from Python and sum with NCCL, as most did before 2024."""
KINDS = {kind.name: kind for kind in (GRAPHS, LAUNCHES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares are of the data sheet's peak, times are in seconds. Defaults are the priors of the fit.

    gemm: of the peak, for products with many rows. memory: of the bandwidth, for weights and activations.
    prefill_attention: of the peak, for many queries. decode_attention: of the bandwidth, for keys and values read by
    single queries. layer_s: of a graph, what the kernels of a layer wait for each other; else what the host takes to
    launch them, hidden behind the device's work or setting the pace. host_s, sequence_s: the host's work per step and
    per sequence in it. request_s: of a request outside steps, before its first token is seen.
    """

    gemm: float = 0.68
    memory: float = 0.82
    prefill_attention: float = 0.4
    decode_attention: float = 0.75
    layer_s: float = 15e-6
    host_s: float = 1.5e-3
    sequence_s: float = 12e-6
    request_s: float = 5e-3
    kind: EngineKind = GRAPHS

    def logs(self) -> list[float]:
        """Logarithms of all numbers, in the order of NUMBERS: the space in which they are fitted."""
        return [math.log(getattr(self, name)) for name in NUMBERS]

    def with_logs(self, logs: list[float]) -> Efficiency:
        return Efficiency(**dict(zip(NUMBERS, map(math.exp, logs), strict=True)), kind=self.kind)

    def numbers(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in NUMBERS}


NUMBERS = (
    "gemm", "memory", "prefill_attention", "decode_attention", "layer_s", "host_s", "sequence_s", "request_s"
)  # fmt: skip
PRIORS = {
    GRAPHS.name: Efficiency(),
    LAUNCHES.name: Efficiency(layer_s=4e-4, host_s=4e-3, sequence_s=1.5e-4, kind=LAUNCHES),
}
"""Where a fit begins, and stays where the rows say nothing, by the kind of engine."""
