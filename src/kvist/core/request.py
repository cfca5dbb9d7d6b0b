"""A request: what a client submits, and its progress, which only the scheduler writes."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from enum import Enum
from typing import NewType

import msgspec

from kvist.core.sampling_params import SamplingParams

RequestId = NewType("RequestId", str)
KeyDomain = NewType("KeyDomain", bytes)  # who may share KV with whom; part of every block's key

PUBLIC_DOMAIN = KeyDomain(b"")


class RequestState(Enum):
    WAITING = "waiting"
    WAITING_FOR_KV = "waiting_for_kv"  # its next blocks are being computed or transferred by someone else
    RUNNING = "running"
    PREEMPTED = "preempted"  # lost its blocks, waits to be computed again
    LEASED = "leased"  # finished; blocks held for a reader until acknowledged or expired
    FINISHED = "finished"


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate, as it reaches the engine. `n` samples are n of these (see `fork_of`).

    prompt_token_ids: packed little-endian int32. domain: key domain of its KV blocks.
    priority: lower is served first. deadline_s: latest finish, in the engine's clock, or None.
    fork_of: id of the sample with index 0 of the same prompt; this one shares its blocks copy-on-write.
    num_incoming_tokens: so many prompt tokens' KV, fewer than all, comes from elsewhere; it starts when that is here.
    leases_kv: when it ends well its blocks are held for a reader, until released or expired.
    ttft_ms, tpot_ms: latency targets, if the client gave any.
    """

    request_id: RequestId
    prompt_token_ids: bytes
    sampling: SamplingParams
    arrival_time_s: float
    eos_token_ids: tuple[int, ...] = ()
    domain: KeyDomain = PUBLIC_DOMAIN
    priority: int = 0
    deadline_s: float | None = None
    sample_index: int = 0
    fork_of: RequestId | None = None
    skip_reading_prefix_cache: bool = False
    num_incoming_tokens: int = 0
    leases_kv: bool = False
    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTargets:
    """What a request is to reach, as times of the engine's clock; fixed when it arrives.

    first_token_by_s: when its first token is due. prefill_s: how long its prompt takes an engine that has nothing else
    to do. tpot_s: the mean time between its tokens. overdue_at_s: when it has waited too long, whatever its targets.
    """

    first_token_by_s: float = math.inf
    prefill_s: float = 0.0
    tpot_s: float = math.inf
    overdue_at_s: float = math.inf

    @property
    def start_by_s(self) -> float:
        """When its prompt must be begun, at the latest, on an engine that then does nothing else."""
        return self.first_token_by_s - self.prefill_s


NO_TARGETS = LatencyTargets()


@dataclass(slots=True, eq=False)
class Request:
    """Progress of one request. Only the scheduler writes it; policies and queue orders read it.

    `token_ids` are all known tokens: the prompt, then the output. The next token to schedule stands at
    `num_computed_tokens + num_in_flight_tokens`.
    """

    new: NewRequest
    token_ids: array[int]  # typecode "i", little-endian int32
    num_prompt_tokens: int
    max_total_tokens: int  # prompt + output at which it stops for length
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_in_flight_samples: int = 0  # tokens that open steps will append
    num_cached_tokens: int = 0  # prompt tokens read from the cache at the first admission
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    targets: LatencyTargets = NO_TARGETS
    first_token_s: float | None = None  # when its first output token was there

    @property
    def request_id(self) -> RequestId:
        return self.new.request_id

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens_to_schedule(self) -> int:
        """Tokens, known or being sampled, that no step has taken yet. 1 for a request that decodes."""
        return len(self.token_ids) + self.num_in_flight_samples - self.num_computed_tokens - self.num_in_flight_tokens


def pack_token_ids(token_ids: list[int] | tuple[int, ...]) -> bytes:
    """Return `token_ids` as little-endian int32. Raises OverflowError for ids outside int32."""
    return array("i", token_ids).tobytes()


def unpack_token_ids(packed: bytes) -> array[int]:
    """Inverse of `pack_token_ids`."""
    tokens: array[int] = array("i")
    tokens.frombytes(packed)
    return tokens
