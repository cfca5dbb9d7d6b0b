"""What metrics show of an engine's present state."""

from __future__ import annotations

from collections.abc import Mapping

from kvist.metrics.prometheus import EngineFacts
from kvist.runtime.engine_client import EngineStatus


def facts_of(
    status: EngineStatus,
    *,
    model_name: str,
    startup_phases_s: Mapping[str, float],
    cache_config: Mapping[str, str] | None = None,
) -> EngineFacts:
    return EngineFacts(
        model_name=model_name,
        num_waiting=status.num_waiting,
        num_running=status.num_running,
        num_total_blocks=status.num_total_blocks,
        num_free_blocks=status.num_free_blocks,
        num_evictable_blocks=status.num_evictable_blocks,
        num_restarts=status.num_restarts,
        heartbeat_age_s=status.heartbeat_age_s,
        startup_phases_s=startup_phases_s,
        cache_config=cache_config or {},
    )
