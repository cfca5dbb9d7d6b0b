"""Proposes tokens with a second, smaller model. What it proposes changes how fast a request goes, never what it gets.

Its KV lies in a pool of its own, in blocks of the same ids as the target's: tables, shared prefixes and copies hold
for both. It computes a request's tokens only when it is asked for drafts, so it costs nothing while nobody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvist.core.step_plan import BlockMove, StepPlan
from kvist.execution.logits import Logits
from kvist.execution.request_tokens import RequestTokens
from kvist.execution.runner import Runner
from kvist.execution.sampler import Sampler, takes_best
from kvist.execution.step_batch import build_batch


@dataclass(slots=True)
class _DraftRow:
    """One request to draft for: tokens [start, num_known) are computed first; num_left drafts are still wanted."""

    request: RequestTokens
    start: int
    num_left: int


class DraftModel:
    """A runner over blocks of which it knows how many slots hold the draft model's own KV.

    num_token_ids: ids that both models have; others are not proposed, and nothing is drafted for requests with them.
    max_position: most tokens that the draft model can take of one request; past them nothing is proposed.
    """

    def __init__(
        self, runner: Runner, sampler: Sampler, *, max_num_tokens: int, num_token_ids: int, max_position: int
    ) -> None:
        self._runner = runner
        self._sampler = sampler
        self._block_size = runner.block_size
        self._max_num_tokens = max_num_tokens
        self._num_token_ids = num_token_ids
        self._max_position = max_position
        self._num_slots: list[int] = [0] * runner.num_blocks  # by block: leading slots whose KV is right

    @property
    def runner(self) -> Runner:
        return self._runner

    def resize(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._runner.resize(max_num_tokens)

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carry out block moves, as the target's runner does."""
        self._runner.move(moves)
        for move in moves:
            self._num_slots[move.target] = min(self._num_slots[move.source], move.num_tokens)

    def close(self) -> None:
        self._runner.close()

    def note_rows(self, plan: StepPlan, requests: Sequence[RequestTokens]) -> None:
        """The plan's rows get new tokens at these places: what was there before is no longer right."""
        size, num_slots = self._block_size, self._num_slots
        for request, start, count in zip(requests, plan.start_positions, plan.num_scheduled_tokens, strict=True):
            first = start // size
            block_id = request.block_ids[first]
            num_slots[block_id] = min(num_slots[block_id], start - first * size)
            for index in range(first + 1, -(-(start + count) // size)):
                num_slots[request.block_ids[index]] = 0

    def propose(self, plan: StepPlan, requests: Sequence[RequestTokens]) -> None:
        """Append drafts to the tokens of the requests for which the plan wants them.

        As many as it says as a rule. Fewer where the model has more to catch up with than a step may hold, where its
        numbers are not finite, and after a token that the target does not have.
        """
        rows, room = [], self._max_num_tokens
        for request in requests:
            num_wanted = plan.num_model_drafts.get(request.data.request_id, 0)
            if num_wanted and room > 0 and len(request.token_ids) + num_wanted <= self._max_position:
                start = self._first_missing(request)
                if max(request.token_ids[start:]) >= self._num_token_ids:
                    continue
                num_behind = len(request.token_ids) - start
                rows.append(_DraftRow(request, start, num_wanted if num_behind <= room else 0))
                room -= num_behind
        room = self._max_num_tokens
        while rows:
            rows = self._pass(rows, room)

    def _first_missing(self, request: RequestTokens) -> int:
        """The first token whose KV this model does not have; the last known one at the latest."""
        size, last = self._block_size, len(request.token_ids) - 1
        for index in range(last // size):
            num_slots = self._num_slots[request.block_ids[index]]
            if num_slots < size:
                return index * size + num_slots
        index = last // size
        return min(index * size + self._num_slots[request.block_ids[index]], last)

    def _pass(self, rows: list[_DraftRow], room: int) -> list[_DraftRow]:
        """Compute what is missing, at most `room` tokens, and draft one token for each row; return who goes on."""
        chunks = []
        for row in rows:
            token_ids = row.request.token_ids[row.start :][:room]
            room -= len(token_ids)
            chunks.append((token_ids, row.start, row.request.block_ids))
        batch = build_batch(chunks, block_size=self._block_size, num_padding_tokens=0)
        drafting = [(row, chunk.rows.stop - 1) for row, chunk in zip(rows, batch.chunks, strict=True) if row.num_left]
        drafted: dict[int, int] = {}

        def take_logits(indices: range, logits: Logits) -> None:
            for i, index in enumerate(indices):
                token_id = self._sample(logits, i, drafting[index][0].request)
                if token_id is not None and token_id < self._num_token_ids:
                    drafted[index] = token_id

        self._runner.run(batch, np.array([last for _, last in drafting], np.int64), take_logits)
        for row, chunk in zip(rows, batch.chunks, strict=True):
            self._note_written(row, chunk.end)
        going_on = []
        for i, (row, _) in enumerate(drafting):
            if i in drafted:
                row.start = len(row.request.token_ids)
                row.request.token_ids.append(drafted[i])
                row.num_left -= 1
                if row.num_left:
                    going_on.append(row)
        return going_on

    def _sample(self, logits: Logits, index: int, request: RequestTokens) -> int | None:
        """The token that would follow if this were the target, sampled with the same random number."""
        if not logits.is_finite[index]:
            return None
        num_tokens = len(request.token_ids)
        if takes_best(request.data.sampling, num_tokens - request.data.num_prompt_tokens):
            return logits.best[index]
        with np.errstate(all="ignore"):
            return self._sampler.sample(logits[index], request.row(num_tokens)).token_id

    def _note_written(self, row: _DraftRow, end: int) -> None:
        size, block_ids = self._block_size, row.request.block_ids
        for index in range(row.start // size, -(-end // size)):
            self._num_slots[block_ids[index]] = min(end - index * size, size)
