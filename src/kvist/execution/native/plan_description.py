"""What a recorded plan does, as data: operations in order, their weights and work, and the buffers between them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvist.core.model_spec import ModelSpec
from kvist.execution.native.traced_plan import PlannedOperation

H = TypeVar("H", bound=Hashable)

MAX_PERIOD = 64  # operations of a layer
# An int8, and per 32 of them two floats and two sums.
ROW_BYTES_PER_NUMBER = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.5}


@dataclass(frozen=True, slots=True)
class Buffer:
    """Workspace between operations. kind: "float32", "bfloat16" or "int8" rows, the last with their scales."""

    role: str
    kind: str
    width: int

    @property
    def bytes_per_token(self) -> int:
        return int(self.width * ROW_BYTES_PER_NUMBER[self.kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDescription:
    """body: all up to the last layer, once per step; head: the rows whose logits are wanted."""

    isa: str
    num_threads: int
    kv_dtype: str
    body: tuple[PlannedOperation, ...]
    head: tuple[PlannedOperation, ...]
    buffers: tuple[Buffer, ...]
    max_num_tokens: int
    workspace_bytes: int


def weight_bytes(operation: PlannedOperation) -> int:
    return sum(weight.num_bytes for weight in operation.weights)


def ops_per_token(operation: PlannedOperation, spec: ModelSpec) -> int:
    """Multiplications and additions of its products for one token; attention's depend on the context instead."""
    if "linear" not in operation.name:
        return 0
    total = sum(2 * weight.num_outputs * weight.width for weight in operation.weights)
    if operation.name.startswith("expert") and spec.moe is not None:
        return total * spec.moe.num_experts_per_token // spec.moe.num_experts
    return total


def attention_ops_per_token_and_key(spec: ModelSpec) -> int:
    """Of one layer: a multiplication and an addition per number of the key and of the value, for each query head."""
    return 4 * spec.num_q_heads * spec.head_dim


@dataclass(frozen=True, slots=True)
class Repeated(Generic[H]):
    """`items`, `count` times one after another."""

    count: int
    items: tuple[H, ...]


def fold(items: Sequence[H]) -> list[Repeated[H]]:
    """Write runs that repeat once: at each place the period that covers most, the shortest of equals."""
    folded: list[Repeated[H]] = []
    alone: list[H] = []
    position = 0
    while position < len(items):
        period, count = _best_period(items, position)
        if count == 1:
            alone.append(items[position])
        else:
            if alone:
                folded.append(Repeated(1, tuple(alone)))
                alone = []
            folded.append(Repeated(count, tuple(items[position : position + period])))
        position += period * count
    if alone:
        folded.append(Repeated(1, tuple(alone)))
    return folded


def _best_period(items: Sequence[H], position: int) -> tuple[int, int]:
    best = (1, 1)
    for period in range(1, min(MAX_PERIOD, (len(items) - position) // 2) + 1):
        pattern, count = items[position : position + period], 1
        while items[position + count * period : position + (count + 1) * period] == pattern:
            count += 1
        if count > 1 and period * count > best[0] * best[1]:
            best = (period, count)
    return best
