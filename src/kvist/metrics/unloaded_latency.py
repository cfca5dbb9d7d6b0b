"""What a request takes that has an engine to itself and finds nothing of its prompt cached, by its length.

One model for all who state targets as multiples of it: load clients, comparisons of policies in real and virtual time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kvist.metrics.served_request import ServedRequest

Curve = Sequence[tuple[float, float]]  # points (tokens, seconds), rising in tokens


@dataclass(frozen=True, slots=True)
class UnloadedPoint:
    """One request alone. tpot_s: the mean over an answer of `num_output_tokens`."""

    num_prompt_tokens: int
    num_output_tokens: int
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class UnloadedLatency:
    """ttft: by prompt tokens. tpot: by tokens of context, half-way through the answer.

    Straight between the points and on beyond the last two, at the first one's below it.
    """

    ttft: Curve
    tpot: Curve

    @staticmethod
    def of(points: Sequence[UnloadedPoint]) -> UnloadedLatency:
        """Of repeats the shortest counts, and no length is slower than a longer one: what else a machine does only ever
        adds time. Raises ValueError without any point.
        """
        if not points:
            raise ValueError("no unloaded latency was measured")
        return UnloadedLatency(
            ttft=_rising([(float(point.num_prompt_tokens), point.ttft_s) for point in points]),
            tpot=_rising([(point.num_prompt_tokens + point.num_output_tokens / 2, point.tpot_s) for point in points]),
        )

    def ttft_s(self, num_prompt_tokens: float) -> float:
        return _on_curve(self.ttft, num_prompt_tokens)

    def tpot_s(self, num_prompt_tokens: float, num_output_tokens: float) -> float:
        return _on_curve(self.tpot, num_prompt_tokens + num_output_tokens / 2)

    def as_document(self) -> Mapping[str, list[list[float]]]:
        """For JSON."""
        return {"ttft": [list(point) for point in self.ttft], "tpot": [list(point) for point in self.tpot]}


def unloaded_points(requests: Sequence[ServedRequest]) -> list[UnloadedPoint]:
    """Of requests that were served one at a time; those that failed or had a single token are left out."""
    points = []
    for request in requests:
        tpots = request.tpots_s()
        if request.is_completed and request.ttft_s is not None and tpots:
            points.append(
                UnloadedPoint(request.num_prompt_tokens, request.num_output_tokens, request.ttft_s, median(tpots))
            )
    return points


def _rising(points: Sequence[tuple[float, float]]) -> Curve:
    shortest: dict[float, float] = {}
    for tokens, seconds in points:
        shortest[tokens] = min(seconds, shortest.get(tokens, seconds))
    fastest = float("inf")
    cleaned = []
    for tokens, seconds in sorted(shortest.items(), reverse=True):
        fastest = min(fastest, seconds)
        cleaned.append((tokens, fastest))
    return cleaned[::-1]


def _on_curve(curve: Curve, tokens: float) -> float:
    if len(curve) == 1 or tokens <= curve[0][0]:
        return curve[0][1]
    index = min(bisect_left(curve, (tokens,)), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[index - 1], curve[index]
    return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
