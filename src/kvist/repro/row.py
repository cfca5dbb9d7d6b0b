"""One published figure and what was measured here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproRow:
    """A line of a table.

    published: the paper's figure, with its place. brief: the figure of the survey that this engine was asked to answer,
    where it has one. measured, baseline: in `unit`, "%" meaning a fraction of 1. spread: (largest - smallest) / median
    of `measured`, or of the ratio where there is a baseline, over the repeats. is_change: show the ratio as a change,
    -55% rather than 0.45x. equal_output: whether outputs that must be equal are. why: what explains the difference.
    """

    name: str
    setup: str
    measured: float
    unit: str
    baseline: float | None = None
    published: str | None = None
    brief: str | None = None
    is_change: bool = False
    spread: float | None = None
    equal_output: bool | None = None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """measured / baseline."""
        return None if not self.baseline else self.measured / self.baseline

    @property
    def effect(self) -> str:
        """The figure to set beside the published one: a ratio with both of its parts, or the value alone."""
        ratio = self.ratio
        text = _with_unit(self.measured, self.unit)
        if self.baseline is not None:
            text = f"{_number(self.baseline, self.unit)} -> {text}"
        if ratio is not None:
            text = f"{f'{ratio - 1:+.0%}' if self.is_change else f'{ratio:.2f}x'} ({text})"
        return text if self.spread is None else f"{text}, spread {self.spread:.0%}"

    @property
    def explanation(self) -> str:
        """Set-up and reason as sentences."""
        sentences = (text for text in (self.setup, self.why) if text)
        return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def _with_unit(value: float, unit: str) -> str:
    return f"{_number(value, unit)} {unit}" if unit not in ("", "%") else _number(value, unit)


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1%}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"
