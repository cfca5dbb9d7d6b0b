"""What a simulation gives: every request's times, every replica's steps, and what the links carried. Plain data."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b


@dataclass(slots=True, eq=False, kw_only=True)
class SimulatedRequest:
    """One request of the load. Times are whole nanoseconds of virtual time.

    outcome: finished, rejected (by the router), failed (a replica refused it), or unfinished.
    token_times_ns: when each output token was sampled. num_cached_tokens: prompt tokens that were not computed.
    num_fetched_tokens: of these, brought from elsewhere first. num_restarts: how often its replica was lost.
    num_migrations: how often its decode moved to another replica.
    """

    index: int
    arrival_ns: int
    num_prompt_tokens: int
    max_tokens: int
    session_id: str | None = None
    outcome: str = "unfinished"
    why: str = ""
    token_times_ns: array[int] = field(default_factory=lambda: array("q"))
    first_scheduled_ns: int | None = None
    finished_ns: int | None = None
    num_cached_tokens: int = 0
    num_fetched_tokens: int = 0
    num_preemptions: int = 0
    num_restarts: int = 0
    num_migrations: int = 0
    prefill_replica: int | None = None
    decode_replica: int | None = None
    predicted_ttft_s: float | None = None

    @property
    def ttft_ns(self) -> int | None:
        return self.token_times_ns[0] - self.arrival_ns if self.token_times_ns else None


@dataclass(slots=True, eq=False, kw_only=True)
class ReplicaCounts:
    """What one replica did. num_planned_steps: those that were not taken in bulk. busy_ns: its first stage computed."""

    replica_id: int
    group: str
    num_devices: int
    num_steps: int = 0
    num_planned_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    busy_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """requests: in the order of the load. end_ns: when the last thing happened.

    link_bytes: carried by each link, by name.
    """

    requests: list[SimulatedRequest]
    replicas: list[ReplicaCounts]
    end_ns: int
    link_bytes: dict[str, int]
    role_changes: list[tuple[int, int, float, float]]  # time in ns, replica, prefill weight, decode weight

    def digest(self) -> str:
        """One number for everything that happened to requests: equal runs have equal digests, on any host."""
        state = blake2b(digest_size=16)
        for request in self.requests:
            facts = (
                request.index, request.arrival_ns, request.outcome, request.first_scheduled_ns, request.finished_ns,
                request.num_cached_tokens, request.num_preemptions, request.prefill_replica, request.decode_replica,
            )  # fmt: skip
            state.update(repr(facts).encode())
            state.update(b",".join(b"%d" % time_ns for time_ns in request.token_times_ns))
        return state.hexdigest()
