"""Moving KV between places: what a scheduler asks for, where it may come from, and who moves the bytes.

Ids and counts only. A real connector copies between hosts or tiers; the simulator's lets time pass on links.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from kvist.core.request import RequestId


class KVPlace(Enum):
    """A kind of place that holds KV, from the nearest to the farthest."""

    DEVICE = "device"  # another replica's pool
    HOST = "host"
    DISK = "disk"
    SHARED_POOL = "shared_pool"


class KVSource(msgspec.Struct, frozen=True, gc=False):
    """Where KV comes from. replica_id: whose device, host memory or disk it is; None for the shared pool."""

    place: KVPlace
    replica_id: int | None


class KVReceive(msgspec.Struct, frozen=True, gc=False):
    """Blocks are reserved for `request_id`: bring the KV of tokens [first_token, end_token) into its table."""

    request_id: RequestId
    first_token: int
    end_token: int
    block_ids: list[int]


class KVConnector(Protocol):
    """Starts transfers; reports each exactly once through `take_finished`."""

    def begin(self, receive: KVReceive, source: KVSource) -> None:
        """Start to bring what `receive` asks for. Returns at once."""
        ...

    def take_finished(self) -> list[tuple[RequestId, int]]:
        """Transfers that ended since the last call: whose, and how many of its first tokens are now here."""
        ...
