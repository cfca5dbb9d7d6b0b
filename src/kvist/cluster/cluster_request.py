"""A request as it reaches the cluster, and what the cluster decides about it."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.core.request import PUBLIC_DOMAIN, KeyDomain, RequestId
from kvist.kvcache.connector import KVSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """prompt_token_ids: packed int32. max_tokens: longest output. tenant: who is to get a fair share."""

    request_id: RequestId
    prompt_token_ids: bytes
    num_prompt_tokens: int
    max_tokens: int
    domain: KeyDomain = PUBLIC_DOMAIN
    session_id: str | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a request is computed. prefill and decode are the same replica for one that is not split.

    num_incoming_tokens: tokens whose KV `source` sends to the prefilling replica first; 0 without a source.
    num_held_at_decode: leading tokens whose KV the decoding replica has already, so nobody need send them.
    predicted_ttft_s, predicted_tpot_s: what the choice was made by.
    """

    prefill: int
    decode: int
    num_incoming_tokens: int
    source: KVSource | None
    num_held_at_decode: int
    predicted_ttft_s: float
    predicted_tpot_s: float

    @property
    def is_split(self) -> bool:
        return self.prefill != self.decode


@dataclass(frozen=True, slots=True)
class Rejection:
    """The request is refused (HTTP 429): `why` names the target that it would miss."""

    why: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """The request waits in the router; `GlobalScheduler.take_released` gives it out later."""


Decision = Placement | Rejection | Held
