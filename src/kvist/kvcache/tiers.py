"""What slower memory keeps of KV that left the device: an LRU set of prefixes, by their digests. No bytes, no ids.

A tier holds whole blocks, each known by the digest of the prefix that ends with it. A block without those before it is
of no use, so of one prompt the first blocks are always the most recently used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class KVTier:
    """At most `capacity_blocks` blocks. 0 is a tier that holds nothing."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._last_used: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self.num_stored_blocks = 0  # of all time

    def __len__(self) -> int:
        return len(self._last_used)

    def store(self, keys: Iterable[bytes]) -> list[bytes]:
        """Keep these blocks, given last blocks first; return those that had to go for them."""
        if self._capacity_blocks == 0:
            return []
        last_used = self._last_used
        for key in keys:
            if key in last_used:
                last_used.move_to_end(key)
            else:
                last_used[key] = None
                self.num_stored_blocks += 1
        gone = []
        while len(last_used) > self._capacity_blocks:
            key, _ = last_used.popitem(last=False)
            gone.append(key)
        return gone

    def num_held_blocks(self, keys: Sequence[bytes], first: int) -> int:
        """How many blocks of a prompt are here, one after another, from block `first` on."""
        last_used = self._last_used
        if not last_used:
            return 0
        end = first
        while end < len(keys) and keys[end] in last_used:
            end += 1
        return end - first

    def touch(self, keys: Sequence[bytes]) -> None:
        """Note a use of these blocks of one prompt, given first blocks first."""
        for key in reversed(keys):
            if key in self._last_used:
                self._last_used.move_to_end(key)

    def clear(self) -> None:
        self._last_used.clear()
