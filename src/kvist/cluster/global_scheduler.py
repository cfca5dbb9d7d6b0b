"""The cluster's scheduler: for each request who prefills, who decodes, what KV is fetched first, or that it is refused.

A state machine like a replica's scheduler: (state, event, now) -> decisions. The simulator and a real router run it
unchanged: they tell it what they see pass (first tokens, ends, KV events, replicas that come and go) and carry out what
it decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvist.cluster.cluster_request import ClusterRequest, Decision, Held, Placement, Rejection
from kvist.cluster.cluster_state import ClusterState, ReplicaState
from kvist.cluster.decode_choice import DecodeEstimate, choose_decode
from kvist.cluster.decode_migration import Migration, choose_migration
from kvist.cluster.early_rejection import MIN_ENDED, MIN_RETRY_AFTER_S, coming_step_s, current_step_s, late_by
from kvist.cluster.fair_queue import FairQueue
from kvist.cluster.predictions import Predictor, PrefillEstimate
from kvist.cluster.prefill_choice import PrefillChoice
from kvist.cluster.prefix_index import PrefixIndex, PrefixKey, prefix_keys
from kvist.cluster.role_balance import RoleBalance, RoleChange
from kvist.cluster.routing_policies.registry import ROUTING_POLICIES
from kvist.cluster.routing_view import RoutingView
from kvist.cluster.tier_index import TierIndex
from kvist.config.cluster_config import RouterConfig
from kvist.core.request import RequestId
from kvist.kvcache.kv_events import KVEvent

MAX_MOVES = 2  # of one request's decode
MAX_MOVES_AT_ONCE = 8


@dataclass(slots=True, eq=False)
class _Placed:
    """num_moves: how often its decode was moved; is_moving: its KV is under way to `decode`, or about to be."""

    request: ClusterRequest
    prefill: int
    decode: int
    has_first_token: bool = False
    num_moves: int = 0
    is_moving: bool = False


class GlobalScheduler:
    """Owns the cluster's state. Calls must come in order of `now`, in seconds of the driving clock."""

    def __init__(
        self,
        config: RouterConfig,
        replicas: list[ReplicaState],
        tiers: TierIndex,
        predictor: Predictor,
        block_size: int,
    ) -> None:
        self._config = config
        self._policy = ROUTING_POLICIES[config.policy]
        self.state = ClusterState(replicas)
        self._index = PrefixIndex(len(replicas), block_size)
        self._tiers = tiers
        self._predictor = predictor
        self._block_size = block_size
        self._placed: dict[RequestId, _Placed] = {}
        self._held: FairQueue[ClusterRequest] = FairQueue()
        self._roles = RoleBalance(ttft_target_s=config.ttft_slo_s or 1.0, tpot_target_s=config.tpot_slo_s or 0.1)

    @property
    def num_held(self) -> int:
        """Requests that wait in the router."""
        return len(self._held)

    def place(self, request: ClusterRequest, now: float) -> Decision:
        """Decide about a new request. Raises nothing: with no live replica it is refused."""
        candidates = self.state.prefill_candidates()
        if not candidates:
            return Rejection("no replica is up", MIN_RETRY_AFTER_S)
        if len(self._held) or self._is_full(candidates, now):
            self._held.push(request.tenant, request)
            return Held()
        return self._place(request, candidates, now)

    def take_released(self, now: float) -> list[tuple[ClusterRequest, Decision]]:
        """The held requests whose turn it is, each with its decision."""
        released: list[tuple[ClusterRequest, Decision]] = []
        while len(self._held):
            candidates = self.state.prefill_candidates()
            if not candidates or self._is_full(candidates, now):
                break
            request = self._held.pop()
            released.append((request, self._place(request, candidates, now)))
        return released

    def _is_full(self, candidates: Sequence[ReplicaState], now: float) -> bool:
        limit = self._config.max_queue_s
        return limit is not None and all(replica.queue_s(now) > limit for replica in candidates)

    def _place(self, request: ClusterRequest, candidates: Sequence[ReplicaState], now: float) -> Decision:
        state = self.state
        self._predictor.start()
        keys = self._keys(request)
        choice = PrefillChoice(
            request=request,
            keys=keys,
            num_held_blocks=self._index.num_held_blocks(keys, len(state.replicas)),
            state=state,
            tiers=self._tiers,
            predictor=self._predictor,
            block_size=self._block_size,
            balancing_threshold=self._config.balancing_threshold,
            now=now,
        )
        prefill = self._policy(
            RoutingView(
                request=request,
                state=state,
                candidates=candidates,
                local=choice.local,
                best=choice.best,
                now=now,
                number=state.num_placed,
                seed=self._config.seed,
            )
        )
        decode = choose_decode(request, prefill, state, self._predictor, now)
        state.num_placed += 1
        rejection = self._rejection(request, prefill, decode, now)
        if rejection is not None:
            return rejection
        self._note_placed(request, prefill, decode, now)
        if prefill.source is not None:
            self._tiers.touch(prefill.source, keys[: prefill.num_reused // self._block_size])
        return Placement(
            prefill=prefill.replica_id,
            decode=decode.replica_id,
            num_incoming_tokens=0 if prefill.source is None else prefill.num_reused,
            source=prefill.source,
            num_held_at_decode=choice.num_held_blocks[decode.replica_id] * self._block_size,
            predicted_ttft_s=prefill.ttft_s,
            predicted_tpot_s=decode.tpot_s,
        )

    def _keys(self, request: ClusterRequest) -> list[PrefixKey]:
        """Of the prompt's prefixes; none where nobody holds any, as without prefix caching."""
        if not len(self._index) and self._tiers.is_empty:
            return []
        return prefix_keys(request.domain, request.prompt_token_ids, self._block_size)

    def _note_placed(
        self, request: ClusterRequest, prefill: PrefillEstimate, decode: DecodeEstimate, now: float
    ) -> None:
        state = self.state
        num_output_tokens = state.expected_output_tokens(request.max_tokens)
        state.replicas[prefill.replica_id].add_prefill(request.request_id, prefill.prefill_s, now)
        state.replicas[decode.replica_id].add_decode(
            request.request_id, request.num_prompt_tokens + num_output_tokens, now + prefill.ttft_s
        )
        state.note_session(request.session_id, prefill.replica_id)
        self._held.charge(request.tenant, num_prompt_tokens=request.num_prompt_tokens)
        self._placed[request.request_id] = _Placed(request, prefill.replica_id, decode.replica_id)

    def _rejection(
        self, request: ClusterRequest, prefill: PrefillEstimate, decode: DecodeEstimate, now: float
    ) -> Rejection | None:
        config = self._config
        if config.rejection in ("none", "at_decode") or self.state.num_ended < MIN_ENDED:
            return None
        late_s = late_by(prefill.ttft_s, config.ttft_slo_s)
        if late_s:
            return Rejection(f"predicted ttft {prefill.ttft_s:.3f} s", max(late_s, MIN_RETRY_AFTER_S))
        replica = self.state.replicas[decode.replica_id]
        if config.rejection == "early":
            step_s = current_step_s(replica, request.num_prompt_tokens, self._predictor)
        else:
            num_output_tokens = self.state.expected_output_tokens(request.max_tokens)
            step_s = coming_step_s(
                replica,
                request.num_prompt_tokens,
                self._predictor,
                at_s=now + prefill.ttft_s,
                decode_time_s=num_output_tokens * (config.tpot_slo_s or decode.tpot_s),
            )
        if late_by(step_s, config.tpot_slo_s):
            return Rejection(f"predicted tpot {step_s:.4f} s", MIN_RETRY_AFTER_S)
        return None

    def note_first_token(self, request_id: RequestId, now: float) -> bool:
        """The prompt is computed. Returns whether it may decode: False refuses it now, with its prefill spent."""
        placed = self._placed.get(request_id)
        if placed is None:
            return True
        placed.has_first_token = True
        self.state.replicas[placed.prefill].end_prefill(request_id, now)
        replica = self.state.replicas[placed.decode]
        if self._config.rejection == "at_decode" and self.state.num_ended >= MIN_ENDED:
            step_s = current_step_s(replica, placed.request.num_prompt_tokens, self._predictor)
            if late_by(step_s, self._config.tpot_slo_s):
                self._forget(request_id, now)
                return False
        replica.start_decode(request_id, now)
        return True

    def note_ended(self, request_id: RequestId, num_output_tokens: int, now: float) -> None:
        """The request has all its output, or was aborted."""
        placed = self._forget(request_id, now)
        if placed is not None:
            self.state.note_output(num_output_tokens)
            self._held.charge(placed.request.tenant, num_output_tokens=num_output_tokens)

    def note_lost(self, request_id: RequestId, now: float) -> None:
        """The request's work so far counts for nothing; it may be placed again under another id."""
        self._forget(request_id, now)

    def _forget(self, request_id: RequestId, now: float) -> _Placed | None:
        placed = self._placed.pop(request_id, None)
        if placed is not None:
            self.state.replicas[placed.prefill].end_prefill(request_id, now)
            self.state.replicas[placed.decode].end_decode(request_id)
        return placed

    def migrate(self, now: float) -> list[Migration]:
        """Decodes to move now, counted at once where they go. `note_moved` is to tell where each went on."""
        moves: list[Migration] = []
        self._predictor.start()
        while len(moves) < MAX_MOVES_AT_ONCE:
            move = choose_migration(self.state, self._predictor, now, self._may_move)
            if move is None:
                break
            placed = self._placed[move.request_id]
            placed.decode, placed.is_moving, placed.num_moves = move.target, True, placed.num_moves + 1
            self.state.replicas[move.source].move_decode(move.request_id, self.state.replicas[move.target])
            moves.append(move)
        return moves

    def _may_move(self, request_id: RequestId) -> bool:
        placed = self._placed.get(request_id)
        return placed is not None and not placed.is_moving and placed.num_moves < MAX_MOVES

    def note_moved(self, request_id: RequestId, replica_id: int) -> None:
        """A request's KV has left its source and it goes on at `replica_id`: its target, or where it was."""
        placed = self._placed.get(request_id)
        if placed is None:
            return
        placed.is_moving = False
        if placed.decode != replica_id:
            placed.num_moves -= 1
            self.state.replicas[placed.decode].move_decode(request_id, self.state.replicas[replica_id])
            placed.decode = replica_id

    def note_kv_events(self, replica_id: int, events: Iterable[KVEvent]) -> None:
        """What changed in a replica's tree. What it let go of goes down to its tiers."""
        self._tiers.note_left_device(replica_id, self._index.apply(replica_id, events))

    def note_down(self, replica_id: int, now: float) -> list[RequestId]:
        """The replica is gone with its KV. Returns the requests that had work there, to be placed again, in order."""
        state = self.state.replicas[replica_id]
        lost = [
            request_id
            for request_id, placed in self._placed.items()
            if placed.decode == replica_id or (placed.prefill == replica_id and not placed.has_first_token)
        ]
        for request_id in lost:
            self._forget(request_id, now)
        state.is_live = False
        state.forget_work()
        self._index.clear(replica_id)
        self._tiers.forget(replica_id)
        return lost

    def note_up(self, replica_id: int, now: float) -> None:
        """The replica takes work, with an empty pool."""
        state = self.state.replicas[replica_id]
        state.is_live = True
        state.head_since_s = now
        state.num_routed = min(
            (other.num_routed for other in self.state.replicas if other.is_live and other is not state),
            default=state.num_routed,
        )

    def balance_roles(self, now: float) -> RoleChange | None:
        """Change the role of one replica if the load asks for it."""
        change = self._roles.choose(self.state, self._predictor, now)
        if change is not None:
            replica = self.state.replicas[change.replica_id]
            replica.prefill_weight, replica.decode_weight = change.prefill_weight, change.decode_weight
        return change
