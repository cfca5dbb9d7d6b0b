"""Requests on their way through a simulated cluster: placed, prefilled, handed over, decoded, lost and placed again.

Carries out what the global scheduler decides, with the same calls that a real router makes to real replicas.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from kvist.cluster.cluster_request import ClusterRequest, Decision, Placement, Rejection
from kvist.cluster.decode_migration import Migration
from kvist.cluster.global_scheduler import GlobalScheduler
from kvist.core.request import FinishReason, NewRequest, RequestId, pack_token_ids
from kvist.core.request_events import EventBatch, Finished, Preempted, Scheduled, TokensSampled
from kvist.core.sampling_params import SamplingParams
from kvist.kvcache.connector import KVReceive
from kvist.simulator.kv_transfers import KVTransfers
from kvist.simulator.links import NS_PER_S
from kvist.simulator.simulated_replica import DecodeRun, SimulatedReplica
from kvist.simulator.simulation_result import SimulatedRequest
from kvist.simulator.trace_prompts import answer_token

FIRST_ID = RequestId("")


@dataclass(slots=True, eq=False)
class Journey:
    """A request that has not ended. attempt: how often it was placed; its id differs from one to the next.

    known_token_ids: prompt and, after a loss, the output so far. is_prefilled: this attempt has given its first token.
    """

    outcome: SimulatedRequest
    known_token_ids: bytes
    num_known_tokens: int
    tenant: str
    attempt: int = 0
    request_id: RequestId = FIRST_ID
    placement: Placement | None = None
    is_prefilled: bool = False
    has_moved: bool = False  # its KV is where it decodes
    move: Migration | None = None  # asked of the replica that decodes

    @property
    def num_missing_tokens(self) -> int:
        return self.outcome.max_tokens - len(self.outcome.token_times_ns)

    @property
    def is_split(self) -> bool:
        """Whether another replica decodes; a single token needs none."""
        return self.placement is not None and self.placement.is_split


class Journeys:
    """All open requests. `on_ended` is called with each one that ends, however."""

    def __init__(self, router: GlobalScheduler, replicas: list[SimulatedReplica], transfers: KVTransfers) -> None:
        self._router = router
        self._replicas = replicas
        self._transfers = transfers
        self._open: dict[RequestId, Journey] = {}
        self._held: dict[RequestId, Journey] = {}
        self._await_memory: dict[RequestId, Journey] = {}  # moved, and no blocks are reserved for their KV yet
        self._pulled: dict[RequestId, Journey] = {}  # computed, held there, and no blocks are reserved to pull it into
        self.ended: list[Journey] = []  # since the owner last looked
        self.new_waits: list[RequestId] = []  # since the owner last looked: calls of `end_wait` that are due later

    def begin(self, journey: Journey, now_ns: int) -> None:
        """Place a request that has just come, or has lost its replica."""
        suffix = f".{journey.attempt}" if journey.attempt else ""
        journey.request_id = RequestId(f"{journey.outcome.index}{suffix}")
        journey.placement, journey.is_prefilled, journey.has_moved, journey.move = None, False, False, None
        request = ClusterRequest(
            request_id=journey.request_id,
            prompt_token_ids=journey.known_token_ids,
            num_prompt_tokens=journey.num_known_tokens,
            max_tokens=journey.num_missing_tokens,
            session_id=journey.outcome.session_id,
            tenant=journey.tenant,
        )
        self._carry_out(journey, self._router.place(request, now_ns / NS_PER_S), now_ns)

    def release_held(self, now_ns: int) -> None:
        """Place requests that the router held back, as far as it lets them go."""
        for request, decision in self._router.take_released(now_ns / NS_PER_S):
            self._carry_out(self._held.pop(request.request_id), decision, now_ns)

    def _carry_out(self, journey: Journey, decision: Decision, now_ns: int) -> None:
        if isinstance(decision, Rejection):
            self._end(journey, "rejected", now_ns, why=decision.why)
            return
        if not isinstance(decision, Placement):
            self._held[journey.request_id] = journey
            return
        journey.placement = decision
        outcome = journey.outcome
        outcome.prefill_replica, outcome.decode_replica = decision.prefill, decision.decode
        outcome.predicted_ttft_s = decision.predicted_ttft_s
        self._open[journey.request_id] = journey
        is_split = decision.is_split and journey.num_missing_tokens > 1
        new = self._new_request(
            journey,
            journey.known_token_ids,
            max_tokens=1 if is_split else journey.num_missing_tokens,
            num_incoming_tokens=decision.num_incoming_tokens,
            leases_kv=is_split,
            now_ns=now_ns,
        )
        if is_split:
            self._transfers.open_stream(journey.request_id, decision)
        self._replicas[decision.prefill].submit(new, now_ns)

    def _new_request(
        self,
        journey: Journey,
        token_ids: bytes,
        *,
        max_tokens: int,
        num_incoming_tokens: int,
        leases_kv: bool,
        now_ns: int,
    ) -> NewRequest:
        return NewRequest(
            request_id=journey.request_id,
            prompt_token_ids=token_ids,
            sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=journey.outcome.index),
            arrival_time_s=now_ns / NS_PER_S,
            num_incoming_tokens=num_incoming_tokens,
            leases_kv=leases_kv,
        )

    def note_events(self, replica: SimulatedReplica, batch: EventBatch, now_ns: int) -> None:
        """What a replica's engine says."""
        for event in batch.events:
            journey = self._open.get(event.request_id)
            if journey is None:
                continue
            if isinstance(event, TokensSampled):
                journey.outcome.token_times_ns.append(now_ns)
                if not journey.is_prefilled:
                    self._note_first_token(journey, now_ns)
            elif isinstance(event, Scheduled):
                self._note_scheduled(journey, event, replica, now_ns)
            elif isinstance(event, Preempted):
                journey.outcome.num_preemptions += 1
            elif isinstance(event, Finished):
                self._note_finished(journey, event, replica, now_ns)

    def note_run(self, run: DecodeRun) -> None:
        """Steps taken at once: each of these requests has a token at each of their ends."""
        times_ns = array("q", run.ends_ns)
        for request_id in run.request_ids:
            self._open[request_id].outcome.token_times_ns.extend(times_ns)

    def note_refused(self, request_id: RequestId, why: str, now_ns: int) -> None:
        """A replica did not take the request."""
        journey = self._open.get(request_id)
        if journey is not None:
            self._router.note_lost(request_id, now_ns / NS_PER_S)
            self._end(journey, "failed", now_ns, why=why)

    def note_receive(self, replica: SimulatedReplica, receive: KVReceive, now_ns: int) -> None:
        """A replica has reserved blocks: bring what belongs into them."""
        journey = self._open.get(receive.request_id)
        self._await_memory.pop(receive.request_id, None)
        self._pulled.pop(receive.request_id, None)
        if journey is None or journey.placement is None:
            replica.abort(receive.request_id, now_ns)
        elif journey.is_prefilled:
            self._transfers.hand_over(receive, now_ns)
        else:
            source = journey.placement.source
            assert source is not None, "a request without a source waits for KV"
            num_tokens = self._transfers.fetch(receive, source, replica.replica_id, journey.known_token_ids, now_ns)
            journey.outcome.num_fetched_tokens += num_tokens

    def note_moved(self, request_id: RequestId) -> None:
        """The KV of a request that was split, or moved, is where it decodes."""
        journey = self._open.get(request_id)
        if journey is not None and journey.placement is not None:
            journey.has_moved = True
            if journey.move is None:
                self._router.note_moved(request_id, journey.placement.decode)

    def migrate(self, now_ns: int) -> None:
        """Ask for the decodes that the router would move.

        Those that found no memory where they went since the last time are computed again there: two replicas that
        hold each other's requests until the other one has memory would wait for ever.
        """
        waiting, self._await_memory = self._await_memory, {}
        for request_id, journey in waiting.items():
            self._forgo_kv(request_id, journey, now_ns)
        for move in self._router.migrate(now_ns / NS_PER_S):
            self._open[move.request_id].move = move
            self._replicas[move.source].give_up(move.request_id, now_ns)

    def end_wait(self, request_id: RequestId, now_ns: int) -> None:
        """A prompt has been held for long: if it still waits for memory where it decodes, it is computed again there.

        Replicas that prefill and decode can hold each other's prompts until the other one has memory: for ever.
        """
        journey = self._pulled.pop(request_id, None)
        if journey is not None:
            self._forgo_kv(request_id, journey, now_ns)

    def _forgo_kv(self, request_id: RequestId, journey: Journey, now_ns: int) -> None:
        """Free what is held of a request for another replica, which computes it itself."""
        if self._open.get(request_id) is not journey or journey.placement is None:
            return
        self._replicas[journey.placement.prefill].release_lease(request_id, now_ns)
        self._replicas[journey.placement.decode].forgo_kv(request_id, now_ns)
        self.note_moved(request_id)

    def note_given_up(
        self, replica: SimulatedReplica, request_id: RequestId, num_tokens: int | None, now_ns: int
    ) -> None:
        """A replica holds the KV of `num_tokens` tokens of a request that is to go on elsewhere. None: it kept it."""
        journey = self._open.get(request_id)
        if journey is None or journey.move is None or journey.placement is None:
            replica.release_lease(request_id, now_ns)
            return
        move, journey.move = journey.move, None
        if num_tokens is None:
            self._router.note_moved(request_id, move.source)
            return
        self._know_output(journey)
        journey.placement = replace(journey.placement, prefill=move.source, decode=move.target)
        journey.outcome.decode_replica = move.target
        journey.outcome.num_migrations += 1
        journey.has_moved = num_tokens == 0
        new = self._new_request(
            journey,
            journey.known_token_ids,
            max_tokens=journey.num_missing_tokens,
            num_incoming_tokens=num_tokens,
            leases_kv=False,
            now_ns=now_ns,
        )
        self._transfers.close_stream(request_id)
        self._pulled.pop(request_id, None)
        if num_tokens:
            self._transfers.open_move(request_id, journey.placement)
            self._await_memory[request_id] = journey
        else:
            self._router.note_moved(request_id, move.target)
        self._replicas[move.target].submit(new, now_ns)

    def note_down(self, replica_id: int, now_ns: int) -> None:
        """A replica is gone: what it had to do, or to send, is begun again elsewhere."""
        now = now_ns / NS_PER_S
        lost = set(self._router.note_down(replica_id, now))
        for request_id, journey in list(self._open.items()):
            placement = journey.placement
            is_source = placement is not None and placement.prefill == replica_id and not journey.has_moved
            is_giver = journey.move is not None and journey.move.source == replica_id
            if request_id not in lost and not is_giver and not (is_source and journey.is_split):
                continue
            self._router.note_lost(request_id, now)
            self._withdraw(journey, now_ns)
            journey.attempt += 1
            journey.outcome.num_restarts += 1
            self._know_output(journey)
            self.begin(journey, now_ns)

    def _withdraw(self, journey: Journey, now_ns: int) -> None:
        del self._open[journey.request_id]
        self._transfers.close_stream(journey.request_id)
        if journey.placement is not None:
            for replica_id in {journey.placement.prefill, journey.placement.decode}:
                if self._replicas[replica_id].is_live:
                    self._replicas[replica_id].abort(journey.request_id, now_ns)
                    self._replicas[replica_id].release_lease(journey.request_id, now_ns)

    @staticmethod
    def _know_output(journey: Journey) -> None:
        """Continue after the tokens that were sent to the client already."""
        num_output_tokens = len(journey.outcome.token_times_ns)
        num_new = journey.outcome.num_prompt_tokens + num_output_tokens - journey.num_known_tokens
        journey.known_token_ids += pack_token_ids([answer_token(journey.outcome.index)]) * num_new
        journey.num_known_tokens += num_new

    def _note_scheduled(self, journey: Journey, event: Scheduled, replica: SimulatedReplica, now_ns: int) -> None:
        outcome = journey.outcome
        if outcome.first_scheduled_ns is None:
            outcome.first_scheduled_ns = now_ns
            outcome.num_cached_tokens = event.num_cached_tokens

    def _note_first_token(self, journey: Journey, now_ns: int) -> None:
        journey.is_prefilled = True
        if self._router.note_first_token(journey.request_id, now_ns / NS_PER_S):
            return
        self._withdraw(journey, now_ns)
        self._end(journey, "rejected", now_ns, why="no room to decode")

    def _note_finished(self, journey: Journey, event: Finished, replica: SimulatedReplica, now_ns: int) -> None:
        if event.reason not in (FinishReason.LENGTH, FinishReason.STOP):
            return
        placement = journey.placement
        assert placement is not None
        if journey.num_missing_tokens > 0:
            tokens = journey.known_token_ids + pack_token_ids([answer_token(journey.outcome.index)])
            new = self._new_request(
                journey,
                tokens,
                max_tokens=journey.num_missing_tokens,
                num_incoming_tokens=journey.num_known_tokens,
                leases_kv=False,
                now_ns=now_ns,
            )
            self._replicas[placement.decode].submit(new, now_ns)
            if self._transfers.note_prefilled(journey.request_id, now_ns):
                self._pulled[journey.request_id] = journey
                self.new_waits.append(journey.request_id)
            return
        del self._open[journey.request_id]
        self._transfers.close_stream(journey.request_id)
        self._router.note_ended(journey.request_id, len(journey.outcome.token_times_ns), now_ns / NS_PER_S)
        self._end(journey, "finished", now_ns)

    def _end(self, journey: Journey, what: str, now_ns: int, *, why: str = "") -> None:
        self._open.pop(journey.request_id, None)
        journey.outcome.outcome, journey.outcome.why = what, why
        journey.outcome.finished_ns = now_ns
        journey.known_token_ids = b""
        self.ended.append(journey)
