"""A request as the scheduler follows it: its progress, its blocks and the thresholds that keep the hot path short."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.core.request import NewRequest, Request, RequestId, unpack_token_ids
from kvist.kvcache.kv_cache import BlockTable, PrefixMatch

Rank = tuple[float, int]  # place in the service order: smaller is served first, the largest is preempted first


@dataclass(slots=True)
class KVWait:
    """Why a waiting request does not start: `owner_id` is computing KV that it can use."""

    owner_id: RequestId
    until_computed_tokens: int  # the owner's progress at which the wait is over
    owner_progress: int  # last seen; the time bound restarts whenever it moves
    since_s: float


@dataclass(slots=True, eq=False, kw_only=True)
class TrackedRequest(Request):
    """Adds to Request what only the scheduler needs. Two thresholds replace per-token work:

    attention_position: a decode at or past it needs a new block, or is the request's last step.
    attention_computed: once this many tokens are computed a block is full, or the request may be done.
    """

    id: RequestId
    rank: Rank
    queued_at_s: float
    stop_ids: frozenset[int]
    min_total_tokens: int
    table: BlockTable | None = None
    num_covered_tokens: int = 0
    attention_position: int = 0
    attention_computed: int = 0
    num_scored_tokens: int = 0  # prompt positions whose log-probabilities were handed out
    match: PrefixMatch | None = field(default=None, repr=False)
    match_version: int = -1
    kv_wait: KVWait | None = None

    @property
    def num_unscheduled_tokens(self) -> int:
        """Known tokens that no step has taken yet."""
        return len(self.token_ids) - self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Output tokens that it may still add."""
        return self.max_total_tokens - len(self.token_ids)

    @property
    def is_complete(self) -> bool:
        """Whether it has all its tokens, and (matters without output) its whole prompt is computed."""
        return len(self.token_ids) >= self.max_total_tokens and self.num_computed_tokens >= self.num_prompt_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether it must compute prompt positions itself, to hand out their log-probabilities."""
        return self.new.sampling.prompt_logprobs is not None and self.num_scored_tokens < self.num_prompt_tokens - 1

    @property
    def reads_prefix_cache(self) -> bool:
        """After a preemption always: what it computed before is in the cache, and it must not be held twice."""
        return not self.scores_prompt and (self.num_preemptions > 0 or not self.new.skip_reading_prefix_cache)

    def set_attention(self, block_size: int) -> None:
        """Renew both thresholds after blocks were taken or committed."""
        self.attention_position = min(self.num_covered_tokens, self.max_total_tokens - 2)
        next_full = (self.num_computed_tokens // block_size + 1) * block_size
        self.attention_computed = min(next_full, self.max_total_tokens - 1)


def track(new: NewRequest, *, max_total_tokens: int, rank: Rank, now: float) -> TrackedRequest:
    """Return the scheduler's record of `new`, waiting since `now`."""
    sampling = new.sampling
    eos = () if sampling.ignore_eos else new.eos_token_ids
    token_ids = unpack_token_ids(new.prompt_token_ids)
    return TrackedRequest(
        new=new,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        max_total_tokens=max_total_tokens,
        id=new.request_id,
        rank=rank,
        queued_at_s=now,
        stop_ids=frozenset(eos) | frozenset(sampling.stop_token_ids),
        min_total_tokens=len(token_ids) + sampling.min_tokens,
    )
