"""Moves KV between simulated replicas: prefixes that are fetched, and prompts handed over from prefill to decode.

Streaming: the KV of a prompt leaves while it is computed, chunk by chunk, into the memory of the host that will decode;
each chunk's transfer begins with the step that computes it and ends no earlier than that step, as layers can be sent as
soon as they are done. From there it is loaded when the decoding replica has blocks. Without streaming it is pulled
then, and the prefilling replica holds its blocks that long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.cluster.cluster_request import Placement
from kvist.core.request import PUBLIC_DOMAIN, RequestId
from kvist.core.step_plan import StepPlan
from kvist.kvcache.connector import KVPlace, KVReceive, KVSource
from kvist.simulator.links import NS_PER_S, Links
from kvist.simulator.simulated_replica import SimulatedReplica
from kvist.simulator.topology import Topology


@dataclass(frozen=True, slots=True)
class _Part:
    """A chunk of a stream."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class _Filling:
    """KV up to `end_token` into blocks that `target` has reserved. held_by: replica and lease to free afterwards."""

    receive: KVReceive
    target: int
    end_token: int
    held_by: tuple[int, RequestId] | None


Arrival = _Part | _Filling


@dataclass(slots=True, eq=False)
class _Stream:
    """The handover of one request. num_sent_tokens: tokens from the first on that need no sending any more.

    is_pulled: nothing is sent before the other replica has blocks.
    """

    placement: Placement
    num_sent_tokens: int
    num_open: int = 0
    is_prefilled: bool = False
    is_streamed: bool = False
    receive: KVReceive | None = None
    is_pulled: bool = False


class KVTransfers:
    """Owns the links. `take_moved` tells which handovers are complete."""

    def __init__(
        self,
        topology: Topology,
        links: Links[Arrival],
        replicas: Sequence[SimulatedReplica],
        *,
        kv_bytes_per_token: int,
        streams_kv: bool,
    ) -> None:
        self._topology = topology
        self.links = links
        self._replicas = replicas
        self._kv_bytes_per_token = kv_bytes_per_token
        self._streams_kv = streams_kv
        self._streams: dict[RequestId, _Stream] = {}
        self._moved: list[RequestId] = []

    def open_stream(self, request_id: RequestId, placement: Placement) -> None:
        """The KV of the request's prompt will be handed over as `placement` says."""
        self._streams[request_id] = _Stream(placement, placement.num_held_at_decode, is_pulled=not self._streams_kv)

    def open_move(self, request_id: RequestId, placement: Placement) -> None:
        """The request decodes no more where `placement` prefills, and its KV, all there, goes where it decodes."""
        self._streams[request_id] = _Stream(placement, 0, is_prefilled=True, is_pulled=True)

    def close_stream(self, request_id: RequestId) -> None:
        """The request has ended or is lost; what is under way for it arrives in vain."""
        self._streams.pop(request_id, None)

    def note_step(self, replica: SimulatedReplica, plan: StepPlan, start_ns: int, end_ns: int) -> None:
        """A step begins: send what it computes of prompts that are handed over, and what was cached before them."""
        if not self._streams_kv or not self._streams:
            return
        for request_id, start, num_tokens in zip(
            plan.request_ids, plan.start_positions, plan.num_scheduled_tokens, strict=True
        ):
            stream = self._streams.get(request_id)
            if stream is None or stream.is_prefilled or stream.placement.prefill != replica.replica_id:
                continue
            num_new = start + num_tokens - stream.num_sent_tokens
            if num_new <= 0:
                continue
            stream.num_sent_tokens += num_new
            stream.num_open += 1
            target = stream.placement.decode
            self.links.begin(
                self._topology.between(replica.replica_id, target),
                num_new * self._kv_bytes_per_token,
                start_ns,
                _Part(request_id),
                not_before_ns=end_ns,
            )

    def note_prefilled(self, request_id: RequestId, now_ns: int) -> bool:
        """The prompt is computed and its replica holds the blocks. Returns whether until they are pulled."""
        stream = self._streams[request_id]
        stream.is_prefilled = True
        if not stream.is_pulled:
            self._advance(request_id, stream, now_ns)
        return stream.is_pulled

    def hand_over(self, receive: KVReceive, now_ns: int) -> None:
        """The decoding replica has blocks for a prompt that is computed."""
        stream = self._streams[receive.request_id]
        stream.receive = receive
        placement = stream.placement
        if not stream.is_pulled:
            self._advance(receive.request_id, stream, now_ns)
        else:
            path = self._topology.between(placement.prefill, placement.decode)
            held_by = placement.prefill, receive.request_id
            self._fill(_Filling(receive, placement.decode, receive.end_token, held_by), path, now_ns)

    def fetch(self, receive: KVReceive, source: KVSource, target: int, token_ids: bytes, now_ns: int) -> int:
        """Bring a cached prefix to `target`, which will prefill the rest. Returns how many tokens are on their way.

        Another replica's blocks are held while they are read; what it has evicted since the decision is not brought.
        """
        end_token, held_by = receive.end_token, None
        if source.place is KVPlace.DEVICE and source.replica_id is not None:
            lease_id = RequestId(f"fetch {receive.request_id}")
            owner = self._replicas[source.replica_id]
            num_held = 0
            if owner.is_live:
                handover = owner.scheduler.kv_handover
                num_held = handover.lease_prefix(lease_id, PUBLIC_DOMAIN, token_ids, now_ns / NS_PER_S)
            end_token = min(end_token, num_held)
            held_by = (source.replica_id, lease_id) if num_held else None
        end_token = max(end_token, receive.first_token)
        self._fill(_Filling(receive, target, end_token, held_by), self._topology.path(source, target), now_ns)
        return end_token - receive.first_token

    def take_moved(self) -> list[RequestId]:
        """Requests whose prompt left the prefilling replica since the last call."""
        moved, self._moved = self._moved, []
        return moved

    def end(self, arrival: Arrival, now_ns: int) -> None:
        """A transfer of `links` has ended."""
        if isinstance(arrival, _Part):
            stream = self._streams.get(arrival.request_id)
            if stream is not None:
                stream.num_open -= 1
                self._advance(arrival.request_id, stream, now_ns)
            return
        request_id, end_token = arrival.receive.request_id, arrival.end_token
        if arrival.held_by is not None and not self._is_held(*arrival.held_by):
            end_token = arrival.receive.first_token  # its source was lost, or gave it up, while it was read
        if self._replicas[arrival.target].is_live:
            self._replicas[arrival.target].bring(request_id, end_token, now_ns)
        if arrival.held_by is not None:
            self._release(*arrival.held_by, now_ns)

    def _advance(self, request_id: RequestId, stream: _Stream, now_ns: int) -> None:
        """Once all is streamed the prefilling replica is free of it, and blocks that are reserved can be filled."""
        if not stream.is_prefilled or stream.num_open:
            return
        placement = stream.placement
        if not stream.is_streamed:
            stream.is_streamed = True
            self._release(placement.prefill, request_id, now_ns)
        receive = stream.receive
        if receive is None:
            return
        stream.receive = None
        # What the decoding replica held at first and has evicted since was not sent: it computes the prompt itself.
        is_whole = receive.first_token >= min(placement.num_held_at_decode, receive.end_token)
        end_token = receive.end_token if is_whole else receive.first_token
        filling = _Filling(receive, placement.decode, end_token, None)
        self._fill(filling, self._topology.from_host(placement.decode), now_ns)

    def _fill(self, filling: _Filling, path: Sequence[int], now_ns: int) -> None:
        num_tokens = filling.end_token - filling.receive.first_token
        self.links.begin(path if num_tokens else (), num_tokens * self._kv_bytes_per_token, now_ns, filling)

    def _is_held(self, replica_id: int, lease_id: RequestId) -> bool:
        replica = self._replicas[replica_id]
        return replica.is_live and replica.scheduler.kv_handover.holds(lease_id)

    def _release(self, replica_id: int, lease_id: RequestId, now_ns: int) -> None:
        if self._replicas[replica_id].is_live:
            self._replicas[replica_id].release_lease(lease_id, now_ns)
        if lease_id in self._streams:
            self._moved.append(lease_id)
