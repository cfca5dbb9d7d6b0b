"""What a step costs, whoever runs it: a handful of counts that every model of step time is a function of."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvist.core.step_plan import StepPlan, chunk_pairs


class StepWork(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One step in numbers. A chunk of n new tokens after c tokens of context reads c + n keys.

    num_tokens: tokens computed, padding included.
    num_sequences: chunks, one per request.
    num_sampled: rows whose logits are taken.
    decode_context_tokens: keys read by chunks of one token, summed over them.
    prefill_pairs: query-key pairs of longer chunks, n c + n (n + 1) / 2 each; a model's window is not looked at.
    prefill_context_tokens: keys read by longer chunks, c + n each.
    """

    num_tokens: int = 0
    num_sequences: int = 0
    num_sampled: int = 0
    decode_context_tokens: int = 0
    prefill_pairs: int = 0
    prefill_context_tokens: int = 0

    @staticmethod
    def of(chunks: Iterable[tuple[int, int]], *, num_sampled: int) -> StepWork:
        """The work of `chunks`: (new tokens, tokens of context before them)."""
        num_tokens = num_sequences = decode_context_tokens = prefill_pairs = prefill_context_tokens = 0
        for num_new_tokens, num_context_tokens in chunks:
            num_tokens += num_new_tokens
            num_sequences += 1
            if num_new_tokens == 1:
                decode_context_tokens += num_context_tokens + 1
            else:
                prefill_pairs += chunk_pairs(num_new_tokens, num_context_tokens)
                prefill_context_tokens += num_context_tokens + num_new_tokens
        return StepWork(
            num_tokens=num_tokens,
            num_sequences=num_sequences,
            num_sampled=num_sampled,
            decode_context_tokens=decode_context_tokens,
            prefill_pairs=prefill_pairs,
            prefill_context_tokens=prefill_context_tokens,
        )

    @staticmethod
    def of_equal(number: int, num_new_tokens: int, num_context_tokens: int, *, num_sampled: int) -> StepWork:
        """The work of `number` equal chunks."""
        one = StepWork.of([(num_new_tokens, num_context_tokens)], num_sampled=0)
        return StepWork(
            num_tokens=number * one.num_tokens,
            num_sequences=number,
            num_sampled=num_sampled,
            decode_context_tokens=number * one.decode_context_tokens,
            prefill_pairs=number * one.prefill_pairs,
            prefill_context_tokens=number * one.prefill_context_tokens,
        )

    def plus(self, num_new_tokens: int, num_context_tokens: int, *, is_sampled: bool) -> StepWork:
        """The work of this step with one more chunk."""
        is_decode = num_new_tokens == 1
        num_keys = num_context_tokens + num_new_tokens
        return StepWork(
            num_tokens=self.num_tokens + num_new_tokens,
            num_sequences=self.num_sequences + 1,
            num_sampled=self.num_sampled + is_sampled,
            decode_context_tokens=self.decode_context_tokens + (num_keys if is_decode else 0),
            prefill_pairs=self.prefill_pairs + (0 if is_decode else chunk_pairs(num_new_tokens, num_context_tokens)),
            prefill_context_tokens=self.prefill_context_tokens + (0 if is_decode else num_keys),
        )

    def with_padding(self, num_padding_tokens: int) -> StepWork:
        """The same step computing `num_padding_tokens` more tokens for nothing."""
        return msgspec.structs.replace(self, num_tokens=self.num_tokens + num_padding_tokens)


def work_of_plan(plan: StepPlan) -> StepWork:
    """The work of `plan`. A row that verifies k drafts is a chunk of 1 + k tokens, each of them sampled."""
    num_drafts = sum(map(len, plan.draft_token_ids.values())) + sum(plan.num_model_drafts.values())
    work = StepWork.of(
        zip(plan.num_scheduled_tokens, plan.start_positions, strict=True), num_sampled=sum(plan.samples) + num_drafts
    )
    return work.with_padding(plan.num_padding_tokens) if plan.num_padding_tokens else work
