"""A whole cluster under virtual time: real engines, the real global scheduler, simulated steps, links and failures.

Discrete events over whole nanoseconds. At one instant things happen in a fixed order (`Kind`), and then every replica
that something happened to takes its turn, in the order of their numbers: so a run is the same on every host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kvist.cluster.replica_handle import ReplicaSpec
from kvist.config.cluster_config import KV_BYTES_PER_TOKEN, ClusterConfig
from kvist.core.errors import ConfigError, KvistError
from kvist.core.request import RequestId
from kvist.core.request_events import EventBatch
from kvist.core.step_plan import StepPlan
from kvist.costmodel.step_work import StepWork
from kvist.kvcache.connector import KVReceive
from kvist.kvcache.kv_events import KVEvent
from kvist.simulator.cluster_parts import StepTimeModels, new_router, replica_specs
from kvist.simulator.happenings import Happenings, Kind
from kvist.simulator.journeys import Journey, Journeys
from kvist.simulator.kv_transfers import Arrival, KVTransfers
from kvist.simulator.links import NS_PER_S, Links
from kvist.simulator.simulated_replica import DecodeRun, SimulatedReplica
from kvist.simulator.simulation_result import ReplicaCounts, SimulatedRequest, SimulationResult
from kvist.simulator.topology import Topology
from kvist.simulator.trace_prompts import TracePrompts
from kvist.workload.trace_record import TraceRecord, count_prompt_tokens

MAX_WAIT_NS = 10 * NS_PER_S  # of a prompt that is held until the replica that decodes has memory for it


class StopRule(Protocol):
    """Ends a simulation as soon as the caller knows what it wanted to know."""

    def note_ended(self, request: SimulatedRequest) -> None:
        """A request has ended, however."""
        ...

    @property
    def is_decided(self) -> bool:
        """Whether what is still to come can be left out."""
        ...


class SimulationObserver(Protocol):
    """Sees every turn of every replica's engine, in order of time."""

    def note_turn(self, replica_id: int, plan: StepPlan | None, batch: EventBatch) -> None:
        """plan: of the step that ended in the turn, if one did."""
        ...


def simulate(
    config: ClusterConfig,
    records: Sequence[TraceRecord],
    step_time: StepTimeModels,
    *,
    has_bulk_steps: bool = True,
    observer: SimulationObserver | None = None,
    stop_rule: StopRule | None = None,
) -> SimulationResult:
    """Run the load through the cluster until everything has ended, or nothing can happen any more.

    step_time: of all replicas, or by the name of their group. has_bulk_steps False plans every single step: slower, for
    tests that the result is the same, and wherever an observer looks on. stop_rule: ends the run early; requests that
    had not ended then stay unfinished. Raises ConfigError for a cluster that makes no sense.
    """
    has_bulk_steps = has_bulk_steps and observer is None
    return ClusterSimulation(config, records, step_time, has_bulk_steps=has_bulk_steps, observer=observer).run(
        stop_rule
    )


class ClusterSimulation:
    """One run. Listens to its replicas."""

    def __init__(
        self,
        config: ClusterConfig,
        records: Sequence[TraceRecord],
        step_time: StepTimeModels,
        *,
        has_bulk_steps: bool,
        observer: SimulationObserver | None = None,
    ) -> None:
        self._observer = observer
        self._stop_rule: StopRule | None = None
        self._config = config
        kv_bytes_per_token = config.cache.kv_bytes_per_token or KV_BYTES_PER_TOKEN
        if any(group.kv_cache_tokens is None for group in config.groups):
            raise ConfigError("each group of replicas needs its kv_cache_tokens")
        self._records = records
        self._has_bulk_steps = has_bulk_steps
        self._happenings = Happenings()
        self._now_ns = 0
        self._touched: set[int] = set()
        topology = Topology(config)
        self._groups = [group for group in config.groups for _ in range(group.count)]
        self._specs = replica_specs(config, topology, step_time)
        self._replicas = [self._new_replica(spec) for spec in self._specs]
        self._counts = [
            ReplicaCounts(replica_id=number, group=group.name, num_devices=group.num_devices)
            for number, group in enumerate(self._groups)
        ]
        self._router = new_router(config, kv_bytes_per_token, self._specs, self._groups)
        self._topology = topology
        self._links: Links[Arrival] = Links(
            topology.bytes_per_s,
            latency_ns=round(config.links.latency_s * NS_PER_S),
            is_fifo=config.links.sharing == "fifo",
        )
        self._links_wake_ns: int | None = None
        self._transfers = KVTransfers(
            topology,
            self._links,
            self._replicas,
            kv_bytes_per_token=kv_bytes_per_token,
            streams_kv=config.links.streams_kv,
        )
        self._journeys = Journeys(self._router, self._replicas, self._transfers)
        self._prompts = TracePrompts(records)
        self._requests: list[SimulatedRequest] = []
        self._followers: dict[int, list[int]] = {}
        self._role_changes: list[tuple[int, int, float, float]] = []
        self._num_left = len(records)
        self._schedule_load()

    def run(self, stop_rule: StopRule | None = None) -> SimulationResult:
        """Let time pass until nothing is left to happen, or the rule says that it is decided."""
        self._stop_rule = stop_rule
        happenings = self._happenings
        while happenings and self._num_left and not (stop_rule is not None and stop_rule.is_decided):
            if happenings.is_idle:
                self._now_ns = happenings.last_change_ns
                break
            self._now_ns = now_ns = happenings.next_ns
            while happenings and happenings.next_ns == now_ns:
                self._happen(*happenings.pop(), now_ns)
            self._take_turns(now_ns)
            self._watch_links()
        if not happenings:
            self._now_ns = happenings.last_change_ns
        return SimulationResult(
            requests=self._requests,
            replicas=self._counts,
            end_ns=self._now_ns,
            link_bytes={
                name: num_bytes
                for name, num_bytes in zip(self._topology.names, self._links.num_bytes, strict=True)
                if num_bytes
            },
            role_changes=self._role_changes,
        )

    # What happens

    def _happen(self, kind: Kind, payload: Any, now_ns: int) -> None:  # Any: what its kind says
        if kind is Kind.STEP_DONE:
            replica, version = payload
            if replica.wake(now_ns, version):
                self._touched.add(replica.replica_id)
        elif kind is Kind.TRANSFER:
            if payload == self._links_wake_ns:
                self._links_wake_ns = None
                self._end_transfers(now_ns)
        elif kind is Kind.ARRIVAL:
            self._arrive(payload, now_ns)
        elif kind is Kind.REPLICA_DOWN:
            self._replica_down(payload, now_ns)
        elif kind is Kind.REPLICA_UP:
            self._replica_up(payload, now_ns)
        elif kind is Kind.MIGRATION:
            self._journeys.migrate(now_ns)
            self._happenings.push_repeated(Kind.MIGRATION, self._config.router.migration_interval_s, now_ns)
        elif kind is Kind.WAIT_END:
            self._journeys.end_wait(payload, now_ns)
        else:
            self._balance_roles(now_ns)

    def _arrive(self, index: int, now_ns: int) -> None:
        record = self._records[index]
        request = self._requests[index]
        request.arrival_ns = now_ns
        journey = Journey(
            outcome=request,
            known_token_ids=self._prompts.prompt(record),
            num_known_tokens=request.num_prompt_tokens,
            tenant=record.session_id or "",
        )
        self._journeys.begin(journey, now_ns)
        self._note_ended(now_ns)

    def _end_transfers(self, now_ns: int) -> None:
        for arrival in self._links.take_ended(now_ns):
            self._transfers.end(arrival, now_ns)
        for request_id in self._transfers.take_moved():
            self._journeys.note_moved(request_id)

    def _replica_down(self, number: int, now_ns: int) -> None:
        self._replicas[number].stop()
        self._journeys.note_down(number, now_ns)
        self._note_ended(now_ns)

    def _replica_up(self, number: int, now_ns: int) -> None:
        if not self._replicas[number].is_live:
            self._replicas[number] = self._new_replica(self._specs[number])
        self._router.note_up(number, now_ns / NS_PER_S)

    def _balance_roles(self, now_ns: int) -> None:
        change = self._router.balance_roles(now_ns / NS_PER_S)
        if change is not None:
            self._role_changes.append((now_ns, change.replica_id, change.prefill_weight, change.decode_weight))
        self._happenings.push_repeated(Kind.ROLES, self._config.router.role_interval_s, now_ns)

    def _take_turns(self, now_ns: int) -> None:
        """Replicas whose step ended, or that something came in for, go on; requests held in the router may follow."""
        while True:
            touched, self._touched = sorted(self._touched), set()
            for number in touched:
                replica = self._replicas[number]
                if replica.is_live and not replica.is_held:
                    replica.turn(now_ns)
            if self._router.num_held:
                self._journeys.release_held(now_ns)
            self._note_ended(now_ns)
            if not self._touched:
                return

    def _note_ended(self, now_ns: int) -> None:
        """Requests that follow those that ended come when their pause is over; waits that began end in time."""
        waits, self._journeys.new_waits = self._journeys.new_waits, []
        for request_id in waits:
            self._happenings.push(now_ns + MAX_WAIT_NS, Kind.WAIT_END, request_id)
        ended, self._journeys.ended = self._journeys.ended, []
        for journey in ended:
            self._num_left -= 1
            if self._stop_rule is not None:
                self._stop_rule.note_ended(journey.outcome)
            for follower in self._followers.get(journey.outcome.index, ()):
                pause_ns = round(self._records[follower].arrival_s * NS_PER_S)
                self._happenings.push(now_ns + pause_ns, Kind.ARRIVAL, follower)

    # What replicas say

    def on_wake_at(self, replica: SimulatedReplica, time_ns: int, version: int) -> None:
        self._happenings.push(time_ns, Kind.STEP_DONE, (replica, version))

    def on_events(
        self, replica: SimulatedReplica, batch: EventBatch, now_ns: int, *, plan: StepPlan | None = None
    ) -> None:
        if self._observer is not None:
            self._observer.note_turn(replica.replica_id, plan, batch)
        if batch.events:
            self._journeys.note_events(replica, batch, now_ns)

    def on_given_up(self, replica: SimulatedReplica, request_id: RequestId, num_tokens: int | None) -> None:
        self._journeys.note_given_up(replica, request_id, num_tokens, self._now_ns)

    def on_refused(self, replica: SimulatedReplica, request_id: RequestId, error: KvistError) -> None:
        self._journeys.note_refused(request_id, str(error), self._now_ns)

    def on_mail(self, replica: SimulatedReplica) -> None:
        self._touched.add(replica.replica_id)

    def on_step(self, replica: SimulatedReplica, plan: StepPlan, work: StepWork, *, start_ns: int, end_ns: int) -> None:
        counts = self._counts[replica.replica_id]
        counts.num_steps += 1
        counts.num_planned_steps += 1
        counts.busy_ns += (end_ns - start_ns) // replica.spec.num_stages
        counts.num_prefill_tokens += work.num_tokens - work.num_sampled
        counts.num_decode_tokens += work.num_sampled
        self._transfers.note_step(replica, plan, start_ns, end_ns)

    def on_repeated(self, replica: SimulatedReplica, run: DecodeRun) -> None:
        counts = self._counts[replica.replica_id]
        counts.num_steps += len(run.ends_ns)
        counts.busy_ns += run.ends_ns[-1] - run.start_ns
        counts.num_decode_tokens += len(run.ends_ns) * len(run.request_ids)
        self._journeys.note_run(run)

    def on_receive(self, replica: SimulatedReplica, receive: KVReceive, now_ns: int) -> None:
        self._journeys.note_receive(replica, receive, now_ns)

    def on_kv_events(self, replica: SimulatedReplica, events: list[KVEvent]) -> None:
        self._router.note_kv_events(replica.replica_id, events)

    # What will happen

    def _watch_links(self) -> None:
        """See to it that the next end of a transfer is an event. Ends move whenever a transfer begins or ends."""
        next_ns = self._links.next_end_ns()
        if next_ns is not None and next_ns != self._links_wake_ns:
            next_ns = max(next_ns, self._now_ns)
            self._links_wake_ns = next_ns
            self._happenings.push(next_ns, Kind.TRANSFER, next_ns)

    def _schedule_load(self) -> None:
        num_prompt_tokens = count_prompt_tokens(self._records)
        for record in self._records:
            self._requests.append(
                SimulatedRequest(
                    index=record.index,
                    arrival_ns=0,
                    num_prompt_tokens=num_prompt_tokens[record.index],
                    max_tokens=record.num_output_tokens,
                    session_id=record.session_id,
                )
            )
            if record.after is None:
                self._happenings.push(round(record.arrival_s * NS_PER_S), Kind.ARRIVAL, record.index)
            else:
                self._followers.setdefault(record.after, []).append(record.index)
        for failure in self._config.failures:
            if failure.replica >= len(self._replicas):
                raise ConfigError(f"replica {failure.replica} is to fail; there are {len(self._replicas)}, from 0 on")
            down_ns = round(failure.at_s * NS_PER_S)
            self._happenings.push(down_ns, Kind.REPLICA_DOWN, failure.replica)
            if failure.down_s is not None:
                delay_s = failure.down_s + self._groups[failure.replica].start_delay_s
                self._happenings.push(down_ns + round(delay_s * NS_PER_S), Kind.REPLICA_UP, failure.replica)
        for number, group in enumerate(self._groups):
            if group.start_delay_s:
                self._router.note_down(number, 0.0)
                self._happenings.push(round(group.start_delay_s * NS_PER_S), Kind.REPLICA_UP, number)
        self._happenings.push_repeated(Kind.ROLES, self._config.router.role_interval_s, 0)
        self._happenings.push_repeated(Kind.MIGRATION, self._config.router.migration_interval_s, 0)

    def _new_replica(self, spec: ReplicaSpec) -> SimulatedReplica:
        return SimulatedReplica(
            spec,
            self._groups[spec.replica_id],
            self,
            block_size=self._config.cache.block_size,
            check_invariants=self._config.check_invariants,
            has_bulk_steps=self._has_bulk_steps,
        )
