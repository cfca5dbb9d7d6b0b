"""Computes a step's batch by replaying the model's native plan."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import ConfigError
from kvist.core.step_plan import BlockMove
from kvist.execution.kv_dtype import KVDtype
from kvist.execution.kv_storage import KVStorage
from kvist.execution.native import _native
from kvist.execution.native.packed_weights import Weight, num_bytes
from kvist.execution.native.plan_description import PlanDescription
from kvist.execution.native.recorder import PlanRecorder
from kvist.execution.native.self_test import trusted_isa
from kvist.execution.native.traced_plan import TracedPlan
from kvist.execution.runner import TakeLogits
from kvist.execution.step_batch import StepBatch
from kvist.models.registry import Model
from kvist.models.weight_sources import ModelWeights

MAX_LOGITS = 1 << 22  # logits held at once (16 MB): their rows are computed in tiles


class NativeRunner:
    """One model's plan over one KV pool: a body up to the last layer, and a head for the rows whose logits are wanted.

    has_integer_attention: attention multiplies int8 numbers; needs an int8 dtype.
    isa: kernels to use; "" for the widest that this processor has and that pass their self-test.
    max_num_rows: requests in a step.
    """

    def __init__(  # noqa: PLR0913 - sizes of one thing
        self,
        model: Model,
        weights: ModelWeights[Weight],
        *,
        num_blocks: int,
        block_size: int,
        dtype: KVDtype,
        max_num_tokens: int,
        max_num_rows: int,
        num_threads: int,
        has_integer_attention: bool = False,
        isa: str = "",
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.weight_bytes = num_bytes(weights)
        self._model = model
        self._weights = weights
        self._dtype = dtype
        self._has_integer_attention = has_integer_attention
        self._isa = isa or trusted_isa()
        try:
            self._pool = _native.ThreadPool(num_threads)
        except RuntimeError as error:
            raise ConfigError(f"{error}; lower --num-threads or raise the limit on threads") from error
        self._max_num_rows = 2 * max_num_rows  # as many rows of padding
        # Padding is computed like real tokens, on blocks that nobody else has: at worst each row has one begun.
        self._num_scratch_blocks = -(-max_num_tokens // block_size) + max_num_rows
        self._kv = KVStorage(
            model.spec, num_blocks=num_blocks + self._num_scratch_blocks, block_size=block_size, dtype=dtype
        )
        self.resize(max_num_tokens)

    @property
    def isa(self) -> str:
        return self._body.isa

    @property
    def activation_dtype(self) -> str:
        """What quantized linears take: "int8", or "bfloat16" on the matrix unit."""
        return self._body.activation_dtype

    @property
    def description(self) -> str:
        attention = " int8 attention" if self._has_integer_attention else ""
        return f"native {self.isa} {self._pool.num_threads}{attention}"

    @property
    def workspace_bytes(self) -> int:
        return self._body.workspace_bytes + self._head.workspace_bytes

    def resize(self, max_num_tokens: int) -> None:
        spec = self._model.spec
        self._logit_rows = max(1, min(max_num_tokens, MAX_LOGITS // spec.vocab_size))
        self._max_num_tokens = max_num_tokens
        self._body = self._new_plan(max_num_tokens)
        self._head = self._new_plan(self._logit_rows)
        recorder = PlanRecorder(
            spec,
            self._body,
            self._head,
            kv_dtype=self._dtype,
            has_integer_attention=self._has_integer_attention,
            block_size=self.block_size,
        )
        self._model.architecture.forward(spec, recorder, self._weights)
        self._buffers = recorder.buffers
        self._finite = self._body.finite().view(np.bool_)
        self._logits = self._head.view(recorder.logits_buffer)[:, : spec.vocab_size]
        self._best = self._head.best()

    def _new_plan(self, max_num_tokens: int) -> TracedPlan:
        return TracedPlan(self._isa, self._pool, max_num_tokens, self._max_num_rows)

    def preallocate(self) -> None:
        self._kv.preallocate(self.num_blocks)

    def run(
        self, batch: StepBatch, logit_rows: NDArray[np.int64], take_logits: TakeLogits, *, timed: bool = False
    ) -> NDArray[np.bool_]:
        """As Runner.run. timed: add up each operation's time, see `timings`."""
        self._pool.open()  # the threads wake up while the batch is laid out
        token_ids = np.frombuffer(batch.token_ids, np.int32)
        if (token_ids.view(np.uint32) >= self._model.spec.vocab_size).any():
            # The edge refuses them; here they would be reads of foreign memory.
            raise IndexError(f"not all of the step's tokens are in the vocabulary: {token_ids.max()}")
        rows, tables = self._rows_of(batch)
        self._body.replay(rows, tables, token_ids, self._kv.data, timed=timed)
        finite = self._finite[: batch.num_tokens].copy()
        for first in range(0, len(logit_rows), self._logit_rows):
            some = logit_rows[first : first + self._logit_rows].astype(np.int32)
            self._head.replay_head(some, timed=timed)
            finite[some] &= self._best[: len(some)] >= 0
            best: list[int] = self._best[: len(some)].tolist()
            logits = NativeLogits(self._head, self._logits, best, finite[some].tolist())
            take_logits(range(first, first + len(some)), logits)
        return finite

    def timings(self) -> list[tuple[str, float]]:
        """Name and summed seconds of each operation, in the plan's order."""
        return [*self._body.timings(), *self._head.timings()]

    def describe(self) -> PlanDescription:
        return PlanDescription(
            isa=self.isa,
            num_threads=self._pool.num_threads,
            kv_dtype=self._dtype.name,
            body=tuple(self._body.planned_operations()),
            head=tuple(self._head.planned_operations()),
            buffers=self._buffers,
            max_num_tokens=self._max_num_tokens,
            workspace_bytes=self.workspace_bytes,
        )

    def move(self, moves: Sequence[BlockMove]) -> None:
        self._kv.move(moves)

    def close(self) -> None:
        self._kv.close()
        del self._body, self._head, self._finite, self._logits, self._best, self._weights, self._kv, self._pool

    def _rows_of(self, batch: StepBatch) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """[rows, 4] of start, number of tokens, first batch row, and where the block table begins; all tables."""
        rows, tables = array("i"), array("i")
        for chunk in batch.chunks:
            rows.extend((chunk.start, chunk.num_tokens, chunk.first_row, len(tables)))
            tables.extend(chunk.block_ids)
        next_block = self.num_blocks
        for chunk in batch.padding:
            rows.extend((0, chunk.num_tokens, chunk.first_row, len(tables)))
            num_blocks = -(-chunk.num_tokens // self.block_size)
            tables.extend(range(next_block, next_block + num_blocks))
            next_block += num_blocks
        assert next_block <= self.num_blocks + self._num_scratch_blocks, "more padding than the runner was made for"
        return np.frombuffer(rows, np.int32).reshape(-1, 4), np.frombuffer(tables, np.int32)


class NativeLogits:
    """See execution.logits.Logits: rows of the head's buffer, looked through by kernels."""

    def __init__(
        self, head: _native.Plan, values: NDArray[np.float32], best: Sequence[int], is_finite: Sequence[bool]
    ) -> None:
        self._head = head
        self._values = values
        self.best = best
        self.is_finite = is_finite

    def __getitem__(self, index: int) -> NativeRow:
        return NativeRow(self._head, self._values[index], self.best[index])


@dataclass(frozen=True, slots=True)
class NativeRow:
    """See execution.logits.LogitRow."""

    head: _native.Plan
    values: NDArray[np.float32]
    best: int

    def with_values(self, values: NDArray[np.float32]) -> NativeRow:
        return NativeRow(self.head, values, int(values.argmax()))

    def top(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ids = np.empty(min(count, len(self.values)), np.int32)
        self.head.top_logits(self.values, ids)
        return ids.astype(np.int64), self.values[ids]

    def weight_sum(self, temperature: float) -> float:
        return self.head.weight_sum(self.values, self.values[self.best], temperature)

    def draw(self, temperature: float, min_p: float, u: float) -> int:
        return self.head.draw(self.values, self.values[self.best], temperature, min_p, u)
