"""What the router knows of the replicas: health, roles, and the work that it has given to each.

It learns only what passes through it (placements, first tokens, ends, KV events), so it needs no polling and is never
behind. Loads are estimates in seconds and tokens; the replicas' own schedulers have the last word.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from kvist.cluster.replica_handle import ReplicaSpec
from kvist.core.request import RequestId

MAX_SESSIONS = 100_000
FIRST_GUESS_OUTPUT_TOKENS = 64.0
OUTPUT_SMOOTHING = 0.02


@dataclass(slots=True)
class DecodeWork:
    """num_tokens: context at its expected end. starts_s: when its prompt is, or is expected to be, computed."""

    num_tokens: int
    starts_s: float
    has_started: bool = False


@dataclass(slots=True, eq=False)
class ReplicaState:
    """One replica. prefills: expected seconds of the prompts given to it and not yet computed, oldest first.

    decodes: the outputs given to it and not yet done, also those whose prompt is still being computed somewhere.
    decode_tokens: sum of their tokens.
    """

    spec: ReplicaSpec
    prefill_weight: float
    decode_weight: float
    is_live: bool = True
    prefills: dict[RequestId, float] = field(default_factory=dict)
    decodes: dict[RequestId, DecodeWork] = field(default_factory=dict)
    prefill_s: float = 0.0
    decode_tokens: int = 0
    head_since_s: float = 0.0  # since when the oldest prefill has been the oldest
    num_routed: int = 0

    @property
    def replica_id(self) -> int:
        return self.spec.replica_id

    @property
    def can_prefill(self) -> bool:
        return self.is_live and self.prefill_weight > 0.0

    @property
    def can_decode(self) -> bool:
        return self.is_live and self.decode_weight > 0.0

    def queue_s(self, now: float) -> float:
        """Expected time until a prompt given to it now would start: what is queued, less what must be done by now."""
        if not self.prefills:
            return 0.0
        head_s = next(iter(self.prefills.values()))
        return max(self.prefill_s - min(max(now - self.head_since_s, 0.0), head_s), 0.0)

    def add_prefill(self, request_id: RequestId, duration_s: float, now: float) -> None:
        if not self.prefills:
            self.head_since_s = now
        self.prefills[request_id] = duration_s
        self.prefill_s += duration_s
        self.num_routed += 1

    def end_prefill(self, request_id: RequestId, now: float) -> None:
        if request_id not in self.prefills:
            return
        if next(iter(self.prefills)) == request_id:
            self.head_since_s = now
        self.prefill_s -= self.prefills.pop(request_id)
        if not self.prefills:
            self.prefill_s = 0.0  # sums of floats drift

    def add_decode(self, request_id: RequestId, num_tokens: int, starts_s: float) -> None:
        self.decodes[request_id] = DecodeWork(num_tokens, starts_s)
        self.decode_tokens += num_tokens

    def start_decode(self, request_id: RequestId, now: float) -> None:
        work = self.decodes.get(request_id)
        if work is not None:
            work.starts_s, work.has_started = now, True

    def end_decode(self, request_id: RequestId) -> None:
        work = self.decodes.pop(request_id, None)
        if work is not None:
            self.decode_tokens -= work.num_tokens

    def move_decode(self, request_id: RequestId, target: ReplicaState) -> None:
        """The decode of the request counts for `target` from now on."""
        work = self.decodes.pop(request_id)
        self.decode_tokens -= work.num_tokens
        target.decodes[request_id] = work
        target.decode_tokens += work.num_tokens

    def forget_work(self) -> None:
        """It lost everything."""
        self.prefills, self.decodes = {}, {}
        self.prefill_s, self.decode_tokens = 0.0, 0


class ClusterState:
    """All replicas, where sessions went, and how long outputs are."""

    def __init__(self, replicas: list[ReplicaState]) -> None:
        self.replicas = replicas
        self.num_placed = 0
        self.num_ended = 0
        self._expected_output_tokens = FIRST_GUESS_OUTPUT_TOKENS
        self._sessions: OrderedDict[str, int] = OrderedDict()

    def prefill_candidates(self) -> list[ReplicaState]:
        """Live replicas that take prompts; if no role is left that does, any live one rather than none."""
        able = [replica for replica in self.replicas if replica.can_prefill]
        return able or [replica for replica in self.replicas if replica.is_live]

    def decode_candidates(self) -> list[ReplicaState]:
        able = [replica for replica in self.replicas if replica.can_decode]
        return able or [replica for replica in self.replicas if replica.is_live]

    def expected_output_tokens(self, max_tokens: int) -> int:
        """How long an output of at most `max_tokens` is expected to become, from those before it."""
        return max(1, min(int(self._expected_output_tokens), max_tokens))

    def note_output(self, num_tokens: int) -> None:
        self.num_ended += 1
        weight = max(OUTPUT_SMOOTHING, 1.0 / self.num_ended)
        self._expected_output_tokens += weight * (num_tokens - self._expected_output_tokens)

    def session_replica(self, session_id: str | None) -> int | None:
        """Where the session's last request went."""
        return None if session_id is None else self._sessions.get(session_id)

    def note_session(self, session_id: str | None, replica_id: int) -> None:
        if session_id is None:
            return
        self._sessions[session_id] = replica_id
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
