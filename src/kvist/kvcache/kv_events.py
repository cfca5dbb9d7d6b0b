"""What changed in the prefix tree, for indexes outside the engine. The domain travels with the tokens."""

from __future__ import annotations

import msgspec

from kvist.core.request import KeyDomain


class BlockStored(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Whole blocks became findable, one after another below `parent_block_id` (None: the domain's root).

    token_ids: packed int32 of these blocks. A block id means this content until BlockRemoved names it.
    """

    domain: KeyDomain
    parent_block_id: int | None
    token_ids: bytes
    block_ids: list[int]


class BlockRemoved(msgspec.Struct, frozen=True, gc=False, tag=True):
    """These blocks can no longer be found; their ids may be used for other content."""

    block_ids: list[int]


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False, tag=True):
    """No block can be found any more, in any domain."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared
