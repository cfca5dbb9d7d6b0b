"""How far predictions of a fit were from what was measured: the half width of error bars, as shares."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """Half widths, as shares of the prediction, that held for 9 of 10 rows. `reason`: what they were taken from."""

    decode: float
    prefill: float
    reason: str
    factor: float = 1.0  # by which they are wider than where they were measured

    def relative(self, *, is_prefill: bool) -> float:
        return self.prefill if is_prefill else self.decode

    def widened(self, factor: float, reason: str) -> ErrorBar:
        """For predictions further from what was measured."""
        return ErrorBar(
            decode=self.decode * factor, prefill=self.prefill * factor, reason=reason, factor=self.factor * factor
        )
