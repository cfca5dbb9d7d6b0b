"""What a placement would cost, in seconds: prefill, decode, transfer. Functions of a step-time model and of sizes."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cluster.cluster_state import ReplicaState
from kvist.cluster.replica_handle import ReplicaSpec
from kvist.config.cluster_config import LinksConfig
from kvist.costmodel.step_work import StepWork
from kvist.kvcache.connector import KVPlace, KVSource

GIGA = 1e9


class Predictor:
    """Stateless but for a memo of the prefill times asked for during one placement (`start` empties it)."""

    def __init__(self, links: LinksConfig, kv_bytes_per_token: int) -> None:
        self._links = links
        self._kv_bytes_per_token = kv_bytes_per_token
        self._memo: dict[tuple[int, int, int, int], float] = {}

    def start(self) -> None:
        """Begin another placement: models may have learnt since the last one."""
        self._memo.clear()

    def prefill_s(self, spec: ReplicaSpec, num_tokens: int, num_reused: int) -> float:
        """Time in which `spec` alone computes a prompt of which it has `num_reused` tokens, in chunks of its budget.

        In a pipeline the chunks follow each other stage by stage; each prompt occupies a stage for this long.
        """
        budget = spec.max_num_batched_tokens
        key = (id(spec.step_time), budget, num_tokens, num_reused)
        if key in self._memo:
            return self._memo[key]
        total_s = 0.0
        for start in range(num_reused, num_tokens, budget):
            num_new = min(budget, num_tokens - start)
            is_last = start + num_new == num_tokens
            total_s += spec.step_time.predict_s(StepWork.of([(num_new, start)], num_sampled=int(is_last)))
        total_s /= spec.num_stages
        self._memo[key] = total_s
        return total_s

    def transfer_s(self, source: KVSource, source_node: int | None, spec: ReplicaSpec, num_tokens: int) -> float:
        """Time to bring the KV of `num_tokens` tokens to `spec` over free links."""
        links = self._links
        if source.place is KVPlace.HOST:
            rate = links.host_gb_per_s
        elif source.place is KVPlace.DISK:
            rate = min(links.disk_gb_per_s, links.host_gb_per_s)
        elif source_node == spec.node:
            rate = links.intra_node_gb_per_s
        else:
            rate = links.inter_node_gb_per_s
        return links.latency_s + num_tokens * self._kv_bytes_per_token / (rate * GIGA)

    @staticmethod
    def decode_step_s(spec: ReplicaSpec, num_rows: int, num_keys: int) -> float:
        """Time of a step of `num_rows` decodes that read `num_keys` keys in all."""
        if num_rows == 0:
            return 0.0
        return spec.step_time.predict_s(
            StepWork(num_tokens=num_rows, num_sequences=num_rows, num_sampled=num_rows, decode_context_tokens=num_keys)
        )

    def tpot_s(self, replica: ReplicaState, *, num_prompt_tokens: int, num_output_tokens: int, now: float) -> float:
        """Expected time per output token of one more request there.

        While prompts are queued there too, chunks of them share its steps: their time is spread over its tokens.
        """
        num_keys = replica.decode_tokens + num_prompt_tokens + num_output_tokens
        step_s = self.decode_step_s(replica.spec, len(replica.decodes) + 1, num_keys)
        return step_s + replica.queue_s(now) / max(num_output_tokens, 1)


@dataclass(frozen=True, slots=True)
class PrefillEstimate:
    """The expected way of a prompt on one replica. num_reused: tokens that it need not compute.

    source: where the last `num_reused - num_local` of these come from, None if they are in its pool.
    """

    replica_id: int
    num_local: int
    num_reused: int
    source: KVSource | None
    transfer_s: float
    queue_s: float
    prefill_s: float

    @property
    def ttft_s(self) -> float:
        return self.transfer_s + self.queue_s + self.prefill_s
