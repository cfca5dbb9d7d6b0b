"""An engine in this process, timed from outside: how much it does of a batch, and how long one batch takes.

Each repeat has texts of its own, so that none finds its prompts cached by the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.api.llm import LLM
from kvist.api.outputs import RequestOutput
from kvist.bench.http_connection import now_s
from kvist.bench.load_source import Requests
from kvist.core.errors import ConfigError
from kvist.core.sampling_params import SamplingParams
from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import TextPart, TraceRecord

Step = Callable[[str], None]  # told what is going on


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBatch:
    """One batch, all of it at once. Latencies of its requests in seconds from the start of the batch."""

    elapsed_s: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    ttfts_s: Sequence[float]
    latencies_s: Sequence[float]


class OfflineBench:
    """temperature: of all requests."""

    def __init__(self, llm: LLM, *, temperature: float = 0.0) -> None:
        self._llm = llm
        self._temperature = temperature
        tokenizer = llm.get_tokenizer()
        self._source = TextSource(lambda text: tokenizer.encode(text, add_special_tokens=False), read_sentences())

    def time_batch(self, records: Sequence[TraceRecord]) -> TimedBatch:
        """Generate them all at once. Raises ConfigError if one continues another, KvistError if one is not served."""
        if any(record.after is not None for record in records):
            raise ConfigError("this load's requests continue each other's answers: use kvist bench serve")
        prompts = [self._source.prompt(record, _no_answers) for record in records]
        sampling = [self._sampling(record) for record in records]
        start_s = now_s()
        outputs = self._llm.generate(prompts, sampling, use_tqdm=False)
        return _timed(outputs, now_s() - start_s)

    def _sampling(self, record: TraceRecord) -> SamplingParams:
        return SamplingParams(
            temperature=self._temperature, ignore_eos=True, max_tokens=record.num_output_tokens, n=record.n
        )


def time_throughput(bench: OfflineBench, requests: Requests, seed: int, repeats: int, show: Step) -> list[TimedBatch]:
    """`repeats` batches of the load after one that does not count."""
    show("warming up")
    bench.time_batch(requests.draw(seed + repeats)[:WARM_UP_REQUESTS])
    batches = []
    for repeat in range(repeats):
        show(f"repeat {repeat + 1} of {repeats}")
        batches.append(bench.time_batch(requests.draw(seed + repeat)))
    return batches


def time_latency(
    bench: OfflineBench, *, batch_size: int, input_len: int, output_len: int, num_warm_up: int, repeats: int, show: Step
) -> list[TimedBatch]:
    """`repeats` batches of equal requests after `num_warm_up` that do not count."""
    batches = []
    for number in range(num_warm_up + repeats):
        show("warming up" if number < num_warm_up else f"repeat {number - num_warm_up + 1} of {repeats}")
        records = [
            TraceRecord(
                index=index,
                arrival_s=0.0,
                prompt=(TextPart(f"latency/{number}/{index}", 0, input_len),),
                num_output_tokens=output_len,
            )
            for index in range(batch_size)
        ]
        batches.append(bench.time_batch(records))
    return batches[num_warm_up:]


WARM_UP_REQUESTS = 4


def _timed(outputs: Sequence[RequestOutput], elapsed_s: float) -> TimedBatch:
    times = [output.metrics for output in outputs]
    return TimedBatch(
        elapsed_s=elapsed_s,
        num_requests=len(outputs),
        num_prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        num_output_tokens=sum(len(sample.token_ids) for output in outputs for sample in output.outputs),
        num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
        ttfts_s=[time.time_to_first_token_s for time in times if time.time_to_first_token_s is not None],
        latencies_s=[time.end_to_end_latency_s for time in times if time.end_to_end_latency_s is not None],
    )


def _no_answers(index: int) -> Sequence[int]:
    raise AssertionError(f"request {index} continues no other")
