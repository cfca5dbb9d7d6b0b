"""The requests that a benchmark sends: a load by name, a recorded one, or random lengths; and how fast they come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvist.core.errors import ConfigError
from kvist.workload.adapting import (
    num_starts,
    scale_lengths,
    scale_times,
    take_first,
    with_arrivals,
    with_other_texts,
)
from kvist.workload.arrival_process import AllAtOnce, Gamma, RampUp
from kvist.workload.length_distribution import Uniform
from kvist.workload.load_file import Load, ServiceLevel, shipped_loads
from kvist.workload.random_stream import RandomStream
from kvist.workload.single_turn import Lengths, SingleTurn
from kvist.workload.trace_record import AnswerPart, TraceRecord


@dataclass(frozen=True, slots=True)
class NamedLoad:
    """A load of a load file; None as its service level for none."""

    load: Load
    service_level: ServiceLevel | None

    @property
    def name(self) -> str:
        return self.load.name

    @property
    def temperature(self) -> float:
        return self.load.temperature

    @property
    def seed(self) -> int:
        return self.load.seed

    @property
    def needs_capacity(self) -> bool:
        shape = self.load.shape
        return hasattr(shape, "segments") or not isinstance(getattr(shape, "arrival", AllAtOnce()), AllAtOnce)

    def draw(self, seed: int, capacity_per_s: float) -> list[TraceRecord]:
        return self.load.records(capacity_per_s=capacity_per_s, seed=seed)


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """A trace; every other seed than its own has the same requests with other texts."""

    name: str
    records: Sequence[TraceRecord]
    seed: int = 0
    temperature: float = 0.0
    needs_capacity: bool = False
    service_level: ServiceLevel | None = None

    def draw(self, seed: int, capacity_per_s: float) -> list[TraceRecord]:
        return list(self.records) if seed == self.seed else with_other_texts(self.records, str(seed))


@dataclass(frozen=True, slots=True)
class RandomLoad:
    """Requests of random lengths, all at once until a rate is given."""

    shape: SingleTurn
    seed: int = 0
    name: str = "random"
    temperature: float = 0.0
    needs_capacity: bool = False
    service_level: ServiceLevel | None = None

    def draw(self, seed: int, capacity_per_s: float) -> list[TraceRecord]:
        return self.shape.records(seed, f"random/{seed}", capacity_per_s)


# needs_capacity: the load's rate is a fraction of what the server can do. draw(seed, capacity_per_s): its requests.
LoadSource = NamedLoad | RecordedLoad | RandomLoad


def random_load(
    *, num_prompts: int, input_len: int, output_len: int, range_ratio: float, prefix_len: int, seed: int
) -> RandomLoad:
    """Lengths uniform in [length * (1 - ratio), length * (1 + ratio)], after a prefix that all share if it is not 0."""
    if not 0 <= range_ratio < 1:
        raise ConfigError(f"--random-range-ratio {range_ratio:g}: it lies in [0, 1)")
    return RandomLoad(
        SingleTurn(
            num_requests=num_prompts,
            arrival=AllAtOnce(),
            mix=(Lengths(1.0, _around(input_len, range_ratio), _around(output_len, range_ratio)),),
            shared_prefix=Uniform(prefix_len, prefix_len) if prefix_len else None,
        ),
        seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How the load's own arrivals are replaced: all at once (inf), or gamma gaps at a rate, or a ramp."""

    per_s: float = math.inf
    burstiness: float = 1.0
    ramp: RampUp | None = None

    def times(self, seed: int, count: int) -> list[float]:
        stream = RandomStream(seed, "request-rate")
        if self.ramp is not None:
            return self.ramp.times(stream, count)
        if math.isinf(self.per_s):
            return [0.0] * count
        # vLLM's burstiness is the shape of the gamma distribution: 1 / cv^2.
        return Gamma(1.0, 1.0 / math.sqrt(self.burstiness)).times(stream, count, self.per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """A source with what the user changed about it."""

    source: LoadSource
    rate: Rate | None = None
    num_prompts: int | None = None
    length_factor: float = 1.0
    time_factor: float = 1.0

    @property
    def needs_capacity(self) -> bool:
        return self.source.needs_capacity and self.rate is None

    def draw(self, seed: int, *, capacity_per_s: float = 1.0, faster: float = 1.0) -> list[TraceRecord]:
        """The requests to send. faster: multiplies the rate at which they come."""
        capacity = capacity_per_s * faster if self.needs_capacity else 1.0
        records = self.source.draw(seed, capacity)
        if self.num_prompts is not None:
            records = take_first(records, self.num_prompts)
        records = scale_lengths(records, self.length_factor)
        if self.rate is not None:
            records = with_arrivals(records, self.rate.times(seed, num_starts(records)))
        if not self.needs_capacity and faster != 1.0:
            records = _sooner(records, faster)
        return scale_times(records, self.time_factor) if self.time_factor != 1.0 else records


def default_requests(name: str) -> NamedLoad:
    """A load that ships with kvist. Raises ConfigError for a name that is none."""
    loads = shipped_loads()
    return NamedLoad(loads.load(name), loads.service_level)


def continues_answers(records: Sequence[TraceRecord]) -> bool:
    return any(isinstance(part, AnswerPart) for record in records for part in record.prompt)


def offered_rate_per_s(records: Sequence[TraceRecord]) -> float | None:
    """Requests per second of the arrivals, follow-ups counted with those they follow; None if all come at once."""
    last_s = max((record.arrival_s for record in records if record.after is None), default=0.0)
    return len(records) / last_s if last_s > 0 else None


def _sooner(records: Sequence[TraceRecord], faster: float) -> list[TraceRecord]:
    """Arrivals closer together; pauses stay, because they are people's."""
    return with_arrivals(records, [record.arrival_s / faster for record in records if record.after is None])


def _around(length: int, ratio: float) -> Uniform:
    return Uniform(max(1, math.floor(length * (1 - ratio))), max(1, math.ceil(length * (1 + ratio))))
