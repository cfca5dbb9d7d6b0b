"""Changes what a replica is for when one phase has much more to do than the other. A role is a weight: no restart.

A replica that takes no more outputs finishes those it has; one that takes no more prompts keeps its cache and can still
be read from. Only when the same phase is short twice in a row does a replica change, and never the last of a phase.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cluster.cluster_state import ClusterState
from kvist.cluster.predictions import Predictor

IMBALANCE = 2.0  # one phase's load over the other's from which a replica changes
MIN_LOAD = 0.5  # of a target: below that nobody is short of anything


@dataclass(frozen=True, slots=True)
class RoleChange:
    replica_id: int
    prefill_weight: float
    decode_weight: float


@dataclass(frozen=True, slots=True)
class PhaseLoads:
    """Mean predicted latency over target, by phase."""

    prefill: float
    decode: float


class RoleBalance:
    """Asked at intervals. Remembers which phase was short the last time, nothing else."""

    def __init__(self, *, ttft_target_s: float, tpot_target_s: float) -> None:
        self._ttft_target_s = ttft_target_s
        self._tpot_target_s = tpot_target_s
        self._short_phase: str | None = None

    def loads(self, state: ClusterState, predictor: Predictor, now: float) -> PhaseLoads:
        prefill = [replica.queue_s(now) / self._ttft_target_s for replica in state.replicas if replica.can_prefill]
        decode = [
            predictor.decode_step_s(replica.spec, len(replica.decodes), replica.decode_tokens) / self._tpot_target_s
            for replica in state.replicas
            if replica.can_decode
        ]
        return PhaseLoads(sum(prefill) / max(len(prefill), 1), sum(decode) / max(len(decode), 1))

    def choose(self, state: ClusterState, predictor: Predictor, now: float) -> RoleChange | None:
        """The change to make now, if any."""
        loads = self.loads(state, predictor, now)
        short = None
        if loads.prefill > max(IMBALANCE * loads.decode, MIN_LOAD):
            short = "prefill"
        elif loads.decode > max(IMBALANCE * loads.prefill, MIN_LOAD):
            short = "decode"
        is_lasting, self._short_phase = short is not None and short == self._short_phase, short
        if not is_lasting:
            return None
        self._short_phase = None
        if short == "prefill":
            givers = [replica for replica in state.replicas if replica.can_decode]
            weights = 1.0, 0.0
        else:
            givers = [replica for replica in state.replicas if replica.can_prefill]
            weights = 0.0, 1.0
        if len(givers) < 2:
            return None
        giver = min(givers, key=lambda replica: (replica.decode_tokens, replica.queue_s(now), replica.replica_id))
        return RoleChange(giver.replica_id, *weights)
