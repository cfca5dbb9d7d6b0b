"""From the calls of a finished run to the requests that results are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvist.bench.answer_reader import AnswerReader, Sample, TokenCount, deliveries
from kvist.bench.client_run import Call, CallState, FinishedRun
from kvist.bench.load_run import TargetsOf
from kvist.metrics.served_request import NO_TARGETS, Delivery, Outcome, ServedRequest
from kvist.workload.trace_record import TraceRecord, count_prompt_tokens

OUTCOMES = {
    CallState.COMPLETED: Outcome.COMPLETED,
    CallState.FAILED: Outcome.FAILED,
    CallState.REJECTED: Outcome.REJECTED,
}
CountTokens = Callable[[str], int]


def served_requests(
    run: FinishedRun,
    records: Sequence[TraceRecord],
    count_tokens: CountTokens,
    targets_of: TargetsOf | None = None,
) -> list[ServedRequest]:
    """One of each call that became due. records: all of the run's. count_tokens: for answers that nobody counted."""
    asked = count_prompt_tokens(records)  # where the server does not say
    return [_served(call, run, asked[call.record.index], count_tokens, targets_of) for call in run.calls]


def _served(
    call: Call, run: FinishedRun, num_asked: int, count_tokens: CountTokens, targets_of: TargetsOf | None
) -> ServedRequest:
    usage = call.reader.usage
    num_prompt = usage.prompt_tokens if usage is not None and usage.prompt_tokens else num_asked
    end_s = run.end_s if call.ended_s is None else call.ended_s
    return ServedRequest(
        index=call.record.index,
        arrival_s=call.due_s - run.start_s,
        sent_s=(end_s if call.sent_s is None else call.sent_s) - run.start_s,
        finished_s=end_s - run.start_s,
        outcome=OUTCOMES.get(call.state, Outcome.UNFINISHED),
        num_prompt_tokens=num_prompt,
        num_cached_tokens=None if usage is None else usage.cached_tokens,
        samples=[
            [(time_s - run.start_s, count) for time_s, count in sample]
            for sample in sample_deliveries(call.reader, count_tokens)
        ],
        session_id=call.record.session_id,
        error=call.error,
        texts=[sample.text for sample in call.reader.samples],
        targets=targets_of(call.record, num_prompt) if targets_of is not None else NO_TARGETS,
    )


def sample_deliveries(reader: AnswerReader, count_tokens: CountTokens) -> list[list[Delivery]]:
    """Of each sample, exact in sum: by its token ids, else by the answer's total, else by tokenizing its text."""
    samples = reader.samples
    if any(sample.token_ids for sample in samples):
        totals = [len(sample.token_ids) for sample in samples]
        if len(samples) == 1 and reader.usage is not None:
            totals = [max(totals[0], reader.usage.completion_tokens)]
    elif reader.usage is not None and reader.usage.completion_tokens:
        totals = _split(reader.usage.completion_tokens, samples)
    elif any(sample.num_told for sample in samples):
        totals = [sample.num_told for sample in samples]
    else:
        totals = [count_tokens(sample.text) if sample.pieces else 0 for sample in samples]
    return [deliveries(sample, total) for sample, total in zip(samples, totals, strict=True)]


def _split(total: int, samples: Sequence[Sample]) -> list[int]:
    """A total of several samples by their share of the text."""
    lengths = [len(sample.text) for sample in samples]
    ends = [round(total * sum(lengths[: place + 1]) / (sum(lengths) or 1)) for place in range(len(samples))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def token_count_of(run: FinishedRun) -> TokenCount:
    """How the completed answers' tokens were counted: the worst way that any needed."""
    ways = {TokenCount.IDS}
    for call in run.calls:
        if call.state is CallState.COMPLETED:
            ways.add(_way(call.reader))
    return max(ways, key=list(TokenCount).index)


def _way(reader: AnswerReader) -> TokenCount:
    if all(sample.token_ids for sample in reader.samples):
        return TokenCount.IDS
    if all(sample.tells_counts for sample in reader.samples):
        return TokenCount.RUNNING
    return TokenCount.TOTAL if reader.usage is not None and reader.usage.completion_tokens else TokenCount.TEXT
