"""A simulation's result in the form of a benchmark's, from virtual time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

from kvist.config.cluster_config import ClusterConfig
from kvist.metrics.benchmark_result import ServerChange, benchmark_result
from kvist.metrics.served_request import Delivery, Outcome, ServedRequest, Targets
from kvist.simulator.links import NS_PER_S
from kvist.simulator.simulation_result import SimulatedRequest, SimulationResult

_OUTCOMES = {
    "finished": Outcome.COMPLETED,
    "rejected": Outcome.REJECTED,
    "failed": Outcome.FAILED,
    "unfinished": Outcome.UNFINISHED,
}


class _Deliveries(Sequence[Delivery]):
    """One token at each of these times, without an object for each: a trace has millions."""

    def __init__(self, times_ns: array[int]) -> None:
        self._times_ns = times_ns

    def __len__(self) -> int:
        return len(self._times_ns)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...

    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        if isinstance(index, slice):
            return _Deliveries(self._times_ns[index])
        return self._times_ns[index] / NS_PER_S, 1

    def __iter__(self) -> Iterator[Delivery]:
        return ((time_ns / NS_PER_S, 1) for time_ns in self._times_ns)


def served_request(request: SimulatedRequest, targets: Targets, end_ns: int) -> ServedRequest:
    """The request as a client would have seen it."""
    arrival_s = request.arrival_ns / NS_PER_S
    finished_ns = end_ns if request.finished_ns is None else request.finished_ns
    return ServedRequest(
        index=request.index,
        arrival_s=arrival_s,
        sent_s=arrival_s,
        finished_s=finished_ns / NS_PER_S,
        outcome=_OUTCOMES[request.outcome],
        num_prompt_tokens=request.num_prompt_tokens,
        samples=(_Deliveries(request.token_times_ns),) if request.token_times_ns else (),
        num_cached_tokens=request.num_cached_tokens,
        session_id=request.session_id,
        error=request.why,
        targets=targets,
    )


def simulated_benchmark(result: SimulationResult, config: ClusterConfig, setup: dict[str, Any]) -> dict[str, Any]:
    """The fields of `kvist bench serve`, and what only a simulation knows: replicas, links, the digest of the run.

    Any: what JSON holds.
    """
    targets = Targets(ttft_s=config.router.ttft_slo_s, tpot_s=config.router.tpot_slo_s)
    requests = [served_request(request, targets, result.end_ns) for request in result.requests]
    document = benchmark_result(
        requests,
        duration_s=result.end_ns / NS_PER_S,
        setup=setup,
        server=ServerChange(
            preemptions=sum(request.num_preemptions for request in result.requests),
            rejections=sum(request.outcome == "rejected" for request in result.requests),
        ),
    )
    duration_ns = max(result.end_ns, 1)
    return {
        **document,
        "num_devices": config.num_devices,
        "fetched_input_tokens": sum(request.num_fetched_tokens for request in result.requests),
        "restarts": sum(request.num_restarts for request in result.requests),
        "migrations": sum(request.num_migrations for request in result.requests),
        "steps": sum(replica.num_steps for replica in result.replicas),
        "replicas": [
            {
                "replica": replica.replica_id,
                "group": replica.group,
                "utilization": replica.busy_ns / duration_ns,
                "steps": replica.num_steps,
                "prefill_tokens": replica.num_prefill_tokens,
                "decode_tokens": replica.num_decode_tokens,
            }
            for replica in result.replicas
        ],
        "link_bytes": result.link_bytes,
        "role_changes": [
            {"time_s": time_ns / NS_PER_S, "replica": replica, "prefill_weight": prefill, "decode_weight": decode}
            for time_ns, replica, prefill, decode in result.role_changes
        ],
        "event_digest": result.digest(),
    }
