"""Loads of independent requests: a mix of lengths, maybe after a shared prefix and documents."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, islice

from kvist.core.errors import ConfigError
from kvist.workload.arrival_process import ArrivalProcess, poisson_within
from kvist.workload.length_distribution import LengthDistribution
from kvist.workload.load_table import LoadTable
from kvist.workload.random_stream import RandomStream
from kvist.workload.trace_record import TextPart, TraceRecord

MAX_DRAWS = 1000  # for each document that a request takes


@dataclass(frozen=True, slots=True)
class Lengths:
    """A kind of request in a mix. share: of all requests, not normalized."""

    share: float
    input: LengthDistribution
    output: LengthDistribution


@dataclass(frozen=True, slots=True)
class Documents:
    """`per_request` different ones of `count` documents, drawn by Zipf's law (1 / rank^zipf), in order of rank."""

    count: int
    per_request: int
    zipf: float
    length: LengthDistribution

    def draw(self, stream: RandomStream, text_prefix: str, lengths: list[int]) -> list[TextPart]:
        cumulative = list(accumulate((rank + 1) ** -self.zipf for rank in range(self.count)))
        chosen: set[int] = set()
        for _ in range(MAX_DRAWS * self.per_request):
            chosen.add(stream.index(cumulative))
            if len(chosen) == self.per_request:
                break
        # By a steep law the last ones are hardly ever drawn: the most popular of them are taken instead.
        rest = (rank for rank in range(self.count) if rank not in chosen)
        chosen.update(islice(rest, self.per_request - len(chosen)))
        return [TextPart(f"{text_prefix}/document/{rank}", 0, lengths[rank]) for rank in sorted(chosen)]


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """See the module. n: samples of each prompt."""

    num_requests: int
    arrival: ArrivalProcess
    mix: tuple[Lengths, ...]
    shared_prefix: LengthDistribution | None = None
    documents: Documents | None = None
    n: int = 1

    def records(self, seed: int, name: str, capacity_per_s: float) -> list[TraceRecord]:
        times = self.arrival.times(RandomStream(seed, f"{name}/arrival"), self.num_requests, capacity_per_s)
        stream = RandomStream(seed, f"{name}/requests")
        shares = list(accumulate(kind.share for kind in self.mix))
        prefix = shared_text(self.shared_prefix, seed, name)
        document_lengths = self._document_lengths(seed, name)
        records = []
        for index, time_s in enumerate(times):
            kind = self.mix[stream.index(shares)]
            documents = self.documents.draw(stream, name, document_lengths) if self.documents else []
            own = TextPart(f"{name}/request/{index}", 0, kind.input.draw(stream))
            num_output = kind.output.draw(stream)
            prompt = (*prefix, *documents, own)
            records.append(
                TraceRecord(index=index, arrival_s=time_s, prompt=prompt, num_output_tokens=num_output, n=self.n)
            )
        return records

    def _document_lengths(self, seed: int, name: str) -> list[int]:
        if self.documents is None:
            return []
        stream = RandomStream(seed, f"{name}/documents")
        return [self.documents.length.draw(stream) for _ in range(self.documents.count)]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time with a rate and lengths of its own."""

    seconds: float
    rate_fraction: float
    lengths: Lengths


@dataclass(frozen=True, slots=True)
class Changing:
    """Poisson arrivals whose rate and lengths change from segment to segment."""

    segments: tuple[Segment, ...]

    def records(self, seed: int, name: str, capacity_per_s: float) -> list[TraceRecord]:
        records: list[TraceRecord] = []
        start_s = 0.0
        for number, segment in enumerate(self.segments):
            arrivals = RandomStream(seed, f"{name}/arrival/{number}")
            stream = RandomStream(seed, f"{name}/requests/{number}")
            for time_s in poisson_within(arrivals, segment.rate_fraction * capacity_per_s, segment.seconds):
                index = len(records)
                own = TextPart(f"{name}/request/{index}", 0, segment.lengths.input.draw(stream))
                num_output = segment.lengths.output.draw(stream)
                records.append(
                    TraceRecord(index=index, arrival_s=start_s + time_s, prompt=(own,), num_output_tokens=num_output)
                )
            start_s += segment.seconds
        return records


def shared_text(length: LengthDistribution | None, seed: int, name: str) -> tuple[TextPart, ...]:
    """The prefix that all requests of a load share; nothing where it states none."""
    if length is None:
        return ()
    return (TextPart(f"{name}/shared", 0, length.draw(RandomStream(seed, f"{name}/shared"))),)


def parse_single_turn(table: LoadTable) -> SingleTurn:
    documents = _parse_documents(table.table("documents")) if "documents" in table else None
    if "mix" in table:
        mix = tuple(_parse_kind(entry) for entry in table.tables("mix"))
    else:
        mix = (_parse_lengths(table, share=1.0),)
    return SingleTurn(
        num_requests=table.count("num_requests"),
        arrival=table.arrival(),
        mix=mix,
        shared_prefix=table.optional_length("shared_prefix"),
        documents=documents,
        n=table.count("n", 1),
    )


def parse_changing(table: LoadTable) -> Changing:
    arrival = table.table("arrival")
    segments = []
    for entry in arrival.tables("segments"):
        lengths = _parse_lengths(entry, share=1.0)
        segments.append(Segment(entry.rate("seconds"), entry.rate("rate"), lengths))
        entry.check_num_requests(segments[-1].seconds * segments[-1].rate_fraction)
        entry.finish()
    arrival.finish()
    return Changing(tuple(segments))


def _parse_lengths(table: LoadTable, *, share: float) -> Lengths:
    return Lengths(share, table.length("input"), table.length("output"))


def _parse_kind(table: LoadTable) -> Lengths:
    kind = _parse_lengths(table, share=table.rate("share"))
    table.finish()
    return kind


def _parse_documents(table: LoadTable) -> Documents:
    documents = Documents(
        count=table.count("count"),
        per_request=table.count("per_request"),
        zipf=table.number("zipf"),
        length=table.length("length"),
    )
    table.finish()
    if documents.per_request > documents.count:
        raise ConfigError(f"{table.where}: {documents.per_request} documents per request of only {documents.count}")
    return documents
