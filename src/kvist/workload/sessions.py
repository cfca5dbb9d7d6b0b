"""Loads whose requests continue earlier ones: conversations, tool loops, trees of thought.

A follow-up's prompt is its predecessor's prompt, that one's answer as the model gave it, and new text.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.workload.arrival_process import ArrivalProcess
from kvist.workload.length_distribution import LengthDistribution
from kvist.workload.load_table import LoadTable
from kvist.workload.random_stream import RandomStream
from kvist.workload.single_turn import shared_text
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord

MAX_TURNS, MAX_DEPTH = 1000, 50  # every one repeats all before it


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions of `turns` requests. The next turn comes a pause (exponential, `mean_pause_s`) after the last answer.

    fork_share: of the sessions, those that split in two half-way; both branches go on with texts of their own.
    """

    num_sessions: int
    turns: int
    arrival: ArrivalProcess
    mean_pause_s: float
    shared_prefix: LengthDistribution | None
    input: LengthDistribution
    output: LengthDistribution
    fork_share: float = 0.0

    def records(self, seed: int, name: str, capacity_per_s: float) -> list[TraceRecord]:
        """Capacity is in requests per second; a session counts as its turns."""
        session_capacity_per_s = capacity_per_s / self.turns
        times = self.arrival.times(RandomStream(seed, f"{name}/arrival"), self.num_sessions, session_capacity_per_s)
        growing = _Growing(seed, name)
        prefix = shared_text(self.shared_prefix, seed, name)
        for number, time_s in enumerate(times):
            stream = RandomStream(seed, f"{name}/session/{number}")
            session_id = f"{name}/session/{number}"
            branches = [growing.first(stream, self, time_s, prefix, session_id)]
            forks = stream.uniform() < self.fork_share
            for turn in range(1, self.turns):
                if forks and turn == self.turns // 2:
                    branches = branches * 2
                branches = [growing.follow(stream, self, parent, session_id) for parent in branches]
        return growing.records


@dataclass(frozen=True, slots=True)
class TreeOfThought:
    """`roots` trees of `depth` levels below the root with `branching` children each; children start with the answer."""

    roots: int
    depth: int
    branching: int
    input: LengthDistribution
    output: LengthDistribution
    mean_pause_s: float = 0.0

    def records(self, seed: int, name: str, capacity_per_s: float) -> list[TraceRecord]:
        growing = _Growing(seed, name)
        for number in range(self.roots):
            stream = RandomStream(seed, f"{name}/tree/{number}")
            session_id = f"{name}/tree/{number}"
            level = [growing.first(stream, self, 0.0, (), session_id)]
            for _ in range(self.depth):
                level = [
                    growing.branch(stream, self, parent, session_id) for parent in level for _ in range(self.branching)
                ]
        return growing.records


class _Growing:
    """The records of a load so far, each appended to one of them or to none."""

    def __init__(self, seed: int, name: str) -> None:
        self.records: list[TraceRecord] = []
        self._name = name

    def first(
        self,
        stream: RandomStream,
        load: Sessions | TreeOfThought,
        time_s: float,
        prefix: tuple[TextPart, ...],
        session_id: str,
    ) -> TraceRecord:
        prompt = (*prefix, self._text(load.input.draw(stream)))
        return self._add(time_s, prompt, load.output.draw(stream), None, session_id)

    def follow(self, stream: RandomStream, load: Sessions, parent: TraceRecord, session_id: str) -> TraceRecord:
        prompt = (*parent.prompt, AnswerPart(parent.index), self._text(load.input.draw(stream)))
        pause_s = stream.exponential(load.mean_pause_s)
        return self._add(pause_s, prompt, load.output.draw(stream), parent.index, session_id)

    def branch(self, stream: RandomStream, load: TreeOfThought, parent: TraceRecord, session_id: str) -> TraceRecord:
        """Continue the parent's text; one token of its own makes the branch differ from its siblings."""
        prompt = (*parent.prompt, AnswerPart(parent.index), self._text(1))
        return self._add(0.0, prompt, load.output.draw(stream), parent.index, session_id)

    def _text(self, num_tokens: int) -> TextPart:
        return TextPart(f"{self._name}/request/{len(self.records)}", 0, num_tokens)

    def _add(
        self,
        arrival_s: float,
        prompt: tuple[TextPart | AnswerPart, ...],
        num_output_tokens: int,
        after: int | None,
        session_id: str,
    ) -> TraceRecord:
        record = TraceRecord(
            index=len(self.records),
            arrival_s=arrival_s,
            prompt=prompt,
            num_output_tokens=num_output_tokens,
            after=after,
            session_id=session_id,
        )
        self.records.append(record)
        return record


def parse_conversations(table: LoadTable) -> Sessions:
    pause = table.table("think_time_s")
    mean_pause_s = pause.number("exponential_mean")
    pause.finish()
    return _parse_sessions(table, turns=table.count("turns", most=MAX_TURNS), mean_pause_s=mean_pause_s, fork_share=0.0)


def parse_agent(table: LoadTable) -> Sessions:
    fork_share = table.share("fork_share", 0.0)
    return _parse_sessions(table, turns=table.count("steps", most=MAX_TURNS), mean_pause_s=0.0, fork_share=fork_share)


def parse_tree_of_thought(table: LoadTable) -> TreeOfThought:
    roots = table.count("roots")
    depth, branching = table.count("depth", most=MAX_DEPTH), table.count("branching", most=MAX_TURNS)
    table.check_num_requests(float(roots) * branching**depth)
    return TreeOfThought(
        roots=roots,
        depth=depth,
        branching=branching,
        input=table.length("input"),
        output=table.length("output"),
    )


def _parse_sessions(table: LoadTable, *, turns: int, mean_pause_s: float, fork_share: float) -> Sessions:
    num_sessions = table.count("num_sessions")
    table.check_num_requests(2 * turns * num_sessions)
    return Sessions(
        num_sessions=num_sessions,
        turns=turns,
        arrival=table.arrival(),
        mean_pause_s=mean_pause_s,
        shared_prefix=table.optional_length("shared_prefix"),
        input=table.length("input"),
        output=table.length("output"),
        fork_share=fork_share,
    )
