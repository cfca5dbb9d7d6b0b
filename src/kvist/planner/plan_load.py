"""The load that plans are judged on: the same requests for every candidate, at any rate, in several draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import msgspec

from kvist.core.errors import ConfigError
from kvist.workload.adapting import at_mean_rate, num_starts, take_first, unchained, with_other_texts
from kvist.workload.load_file import Load
from kvist.workload.trace_record import AnswerPart, TraceRecord, count_prompt_tokens

Draw = Sequence[TraceRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLoad:
    """draws: independent samples of one load, as long as each other; the first is what searches use.

    Common random numbers: at every rate, and for every candidate, a draw has the same requests and the same arrivals
    but for their scale, so that differences between candidates are not differences between samples.
    length_factor: by which the load's own lengths were multiplied.
    """

    name: str
    draws: tuple[Draw, ...]
    seed: int | None = None  # of the first draw; None of a recorded load
    length_factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.draws or not all(self.draws):
            raise ConfigError(f"the load {self.name} holds no requests")

    def at_rate(self, rate_per_s: float, *, draw: int = 0, num_requests: int | None = None) -> Draw:
        """The first requests of a draw, coming with `rate_per_s` requests per second on average.

        Those that follow others count too: a conversation of 4 turns is 4 requests.
        """
        records = self._first(draw, num_requests)
        return at_mean_rate(records, rate_per_s * num_starts(records) / len(records))

    def at_once(self, *, min_requests: int = 0) -> Draw:
        """The first draw waiting from the beginning, followers too: what capacity is measured with.

        Too few for `min_requests` are joined by those of the next draws, and of the same ones with other texts.
        """
        found: list[TraceRecord] = []
        for number in count():
            records = unchained(self.draws[number % len(self.draws)])
            if number:
                records = with_other_texts(records, str(number))
            start = len(found)
            found += [msgspec.structs.replace(record, index=start + record.index) for record in records]
            if len(found) >= min_requests:
                break
        return found

    @property
    def words(self) -> list[str]:
        """Flags of the commands that play the first draw, besides its name and its rate."""
        words = ["--num-prompts", str(len(self.draws[0]))]
        return words if self.length_factor == 1.0 else [*words, "--scale-lengths", repr(self.length_factor)]

    def lengths(self) -> list[tuple[int, int]]:
        """Prompt and output tokens of each request of the first draw."""
        records = self.draws[0]
        outputs = [record.num_output_tokens for record in records]
        return list(zip(count_prompt_tokens(records), outputs, strict=True))

    def _first(self, draw: int, num_requests: int | None) -> Draw:
        records = self.draws[draw]
        return records if num_requests is None else take_first(records, num_requests)


def draws_of_load(load: Load, *, num_draws: int, num_requests: int | None = None) -> PlanLoad:
    """A stated load with its own seed and the ones after it."""
    seeds = range(load.seed, load.seed + num_draws)
    draws = tuple(load.records(capacity_per_s=1.0, seed=seed)[:num_requests] for seed in seeds)
    return PlanLoad(name=load.name, draws=draws, seed=load.seed)


def draws_of_trace(name: str, records: Draw, *, num_draws: int, num_requests: int | None = None) -> PlanLoad:
    """A recorded load, in stretches one after another; one draw where requests follow others or there are too few."""
    length = min(num_requests or len(records), len(records))
    is_linked = any(record.after is not None for record in records) or any(
        isinstance(part, AnswerPart) for record in records for part in record.prompt
    )
    if is_linked:
        return PlanLoad(name=name, draws=(take_first(records, length),))
    num_draws = max(1, min(num_draws, len(records) // max(length, 1)))
    return PlanLoad(name=name, draws=tuple(_stretch(records, i * length, length) for i in range(num_draws)))


def _stretch(records: Draw, start: int, length: int) -> Draw:
    chosen = records[start : start + length]
    first_s = chosen[0].arrival_s if chosen else 0.0
    return [
        msgspec.structs.replace(record, index=place, arrival_s=record.arrival_s - first_s)
        for place, record in enumerate(chosen)
    ]
