"""A native plan that remembers what was appended to it, so that it can be printed and its timings can be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvist.execution.native import _native
from kvist.execution.native.packed_weights import FORMATS

FORMAT_NAMES = {number: name for name, number in FORMATS.items()}
# Methods that append nothing; replaying and asking must cost no more for being traced.
QUESTIONS = (
    "borrow", "buffer", "quantized", "quantized_within", "takes_quantized", "replay", "replay_head", "view", "timings",
    "finite", "best", "top_logits", "weight_sum", "draw",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightShape:
    """One matrix as a kernel reads it: [num_outputs, width]."""

    num_outputs: int
    width: int
    format: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedOperation:
    """One operation of a plan. weights: what it multiplies with or, for `embed`, looks up; experts lie side by side.

    accumulates: adds its outputs to what the buffer holds, the residual stream.
    """

    name: str
    weights: tuple[WeightShape, ...] = ()
    accumulates: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One call that appended operations [begin, end). weights: those of each argument that has any."""

    begin: int
    end: int
    weights: tuple[tuple[WeightShape, ...], ...]
    accumulates: bool


class TracedPlan(_native.Plan):
    """Behaves like the plan it is."""

    def __init__(self, isa: str, pool: _native.ThreadPool, max_tokens: int, max_rows: int) -> None:
        super().__init__(isa, pool, max_tokens, max_rows)
        self.calls: list[Call] = []

    def planned_operations(self) -> list[PlannedOperation]:
        """What `timings` times, in the same order."""
        names = [name for name, _ in self.timings()]
        return [operation for call in self.calls for operation in _operations(call, names[call.begin : call.end])]


def _operations(call: Call, names: list[str]) -> list[PlannedOperation]:
    """A call's weights belong to its linears, in order; to its first operation if their numbers differ."""
    linears = [i for i, name in enumerate(names) if "linear" in name]
    owned: dict[int, tuple[WeightShape, ...]] = {}
    if len(linears) == len(call.weights):
        owned = dict(zip(linears, call.weights, strict=True))
    elif call.weights:
        owned = {linears[0] if linears else 0: tuple(weight for group in call.weights for weight in group)}
    return [PlannedOperation(name, owned.get(i, ()), call.accumulates and i in owned) for i, name in enumerate(names)]


def _weights_in(argument: object) -> tuple[WeightShape, ...]:
    found = argument if isinstance(argument, list | tuple) else (argument,)
    return tuple(
        WeightShape(weight.n, weight.k, FORMAT_NAMES[weight.format], weight.num_bytes)
        for weight in found
        if isinstance(weight, _native.Weight)
    )


def _traced(append: Callable[..., Any]) -> Callable[..., Any]:  # Any: whatever the plan's own method takes and gives
    def call(self: TracedPlan, *arguments: Any, **options: Any) -> Any:
        begin = self.num_operations
        result = append(self, *arguments, **options)
        if self.num_operations > begin:
            groups = tuple(filter(None, map(_weights_in, (*arguments, *options.values()))))
            self.calls.append(Call(begin, self.num_operations, groups, bool(options.get("accumulate"))))
        return result

    return call


for _name, _method in vars(_native.Plan).items():
    if callable(_method) and not _name.startswith("_") and _name not in QUESTIONS:
        setattr(TracedPlan, _name, _traced(_method))
