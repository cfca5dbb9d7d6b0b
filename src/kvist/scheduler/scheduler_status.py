"""What a scheduler tells of itself. Apart from it, for servers whose engine is another process."""

from __future__ import annotations

import msgspec


class SchedulerStatus(msgspec.Struct, frozen=True, gc=False):
    """Numbers for health and metrics, at one moment."""

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_free_blocks: int
    num_evictable_blocks: int
    num_total_blocks: int
