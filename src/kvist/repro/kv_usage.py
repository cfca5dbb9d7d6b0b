"""How well the KV pool is used while a load runs: slots held against tokens in them, and blocks shared."""

from __future__ import annotations

from collections.abc import Mapping

from kvist.bench.load_run import RequestRun
from kvist.core.request import RequestId
from kvist.core.request_events import StepSummary
from kvist.kvcache.kv_cache import KVCache


class KVUsage:
    """Time-weighted means over the steps of a run. Hand `note` to the runner as `on_step`.

    A slot is a token's place in a block that a running request holds. What waits in the cache for a later request is
    not counted: it gives way at once.
    """

    def __init__(self, kv_cache: KVCache) -> None:
        self._kv_cache = kv_cache
        self._seconds = 0.0
        self._num_running = 0.0
        self._full_seconds = 0.0
        self._full_running = 0.0
        self._held_slots = 0.0
        self._tokens = 0.0
        self._table_blocks = 0.0
        self._distinct_blocks = 0.0
        self.max_running = 0

    def note(self, step: StepSummary, requests: Mapping[RequestId, RequestRun]) -> None:
        tables = self._kv_cache.tables
        table_blocks = sum(len(table.block_ids) for table in tables.values())
        num_tokens = sum(
            len(requests[id_].prompt_token_ids) + len(requests[id_].token_ids) for id_ in tables if id_ in requests
        )
        seconds = step.step_time_s
        self._seconds += seconds
        self._num_running += step.num_running * seconds
        self.max_running = max(self.max_running, step.num_running)
        if step.num_waiting:
            self._full_seconds += seconds
            self._full_running += step.num_running * seconds
        self._held_slots += table_blocks * self._kv_cache.block_size * seconds
        self._tokens += num_tokens * seconds
        self._table_blocks += table_blocks * seconds
        self._distinct_blocks += self._kv_cache.pool.num_referenced_blocks * seconds

    @property
    def mean_running_while_some_wait(self) -> float:
        """Requests running at once while memory or the sequence limit kept others waiting; of all time if none did."""
        if self._full_seconds:
            return self._full_running / self._full_seconds
        return self._num_running / self._seconds if self._seconds else 0.0

    @property
    def waste_share(self) -> float:
        """Slots held but empty, as a share of those held; of tables that share no blocks."""
        return 1.0 - self._tokens / self._held_slots if self._held_slots else 0.0

    @property
    def shared_share(self) -> float:
        """Blocks that sharing saves, as a share of those that the same tables would hold without it."""
        return 1.0 - self._distinct_blocks / self._table_blocks if self._table_blocks else 0.0
