"""The work that kvist and its peers are compared on: prompts, output lengths, and how seconds become a figure.

All but the plain decode and prefill are frozen loads. Texts differ from repeat to repeat, so that no prefix cache can
help across runs; engines see the same text within one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.workload.load_file import frozen_loads
from kvist.workload.text_source import TextSource
from kvist.workload.trace_record import TextPart, TraceRecord

SEED = 20261130

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """num_requests at once, each of num_prompt_tokens, generating num_output_tokens.

    load: the frozen load that the prompts are of; None: texts of their own. without_prefill: the seconds that count are
    those beyond the same run with one output token. figure: of the seconds that count.
    """

    name: str
    num_requests: int = 1
    num_prompt_tokens: int
    num_output_tokens: int
    load: str | None = None
    without_prefill: bool = False
    unit: str = "tokens/s"
    figure: Callable[[Work, float], float]

    @property
    def is_higher_better(self) -> bool:
        return self.unit == "tokens/s"

    def prompts(self, source: TextSource, repeat: int, *, part: str = "run") -> Prompts:
        """The prompts of one repeat; another `part` of it has other texts."""
        return [source.prompt(record, _no_answers) for record in self._records(repeat, part)]

    def _records(self, repeat: int, part: str) -> list[TraceRecord]:
        if self.load is not None:
            return frozen_loads().load(self.load).records(capacity_per_s=1.0, seed=SEED + repeat)
        text = TextPart(f"peers/{self.name}/{part}/{repeat}", 0, self.num_prompt_tokens)
        return [TraceRecord(index=0, arrival_s=0.0, prompt=(text,), num_output_tokens=self.num_output_tokens)]


def text_tokens(source: TextSource, name: str, num_tokens: int) -> list[int]:
    """Tokens of the text called `name`; another name is another text."""
    return source.tokens(TextPart(f"peers/{name}", 0, num_tokens))


def _no_answers(index: int) -> Sequence[int]:
    raise AssertionError(f"request {index} follows no other")


def _output_rate(work: Work, seconds: float) -> float:
    return work.num_requests * (work.num_output_tokens - work.without_prefill) / seconds


def _prompt_rate(work: Work, seconds: float) -> float:
    return work.num_requests * work.num_prompt_tokens / seconds


def _seconds(work: Work, seconds: float) -> float:
    return seconds


def _load(name: str, unit: str, figure: Callable[[Work, float], float]) -> Work:
    first, *others = frozen_loads().load(name).records(capacity_per_s=1.0)
    return Work(
        name=name,
        load=name,
        num_requests=1 + len(others),
        num_prompt_tokens=sum(part.num_tokens for part in first.prompt if isinstance(part, TextPart)),
        num_output_tokens=first.num_output_tokens,
        unit=unit,
        figure=figure,
    )


WORKS: Sequence[Work] = (
    Work(name="decode_128", num_prompt_tokens=128, num_output_tokens=129, without_prefill=True, figure=_output_rate),
    Work(name="prefill_256", num_prompt_tokens=256, num_output_tokens=1, figure=_prompt_rate),
    Work(name="prefill_512", num_prompt_tokens=512, num_output_tokens=1, figure=_prompt_rate),
    Work(name="prefill_2048", num_prompt_tokens=2048, num_output_tokens=1, figure=_prompt_rate),
    _load("fixed_16", "tokens/s", _output_rate),
    _load("fixed_32", "tokens/s", _output_rate),
    _load("shared_system_32", "s", _seconds),
)
