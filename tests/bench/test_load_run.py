"""A load played through an engine in this process: every request ends, answers go back, times count from when due."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import TinyModel

from kvist.bench.load_run import LoadRun, LoadRunner, percentile
from kvist.bench.loaded_model import LoadedModel, load_model
from kvist.bench.perplexity import token_logprobs
from kvist.config.load import engine_config_from_keywords
from kvist.config.scheduler_config import SchedulerConfig
from kvist.runtime.real_clock import RealClock
from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord


@pytest.fixture(scope="module")
def model(tiny_model: TinyModel) -> Iterator[LoadedModel]:
    config = engine_config_from_keywords({"max_num_batched_tokens": 64, "max_num_seqs": 4, "num_threads": 1})
    loaded = load_model(config, tiny_model("llama", "q8_0"), num_blocks=64)
    yield loaded
    loaded.close()


def play(
    model: LoadedModel, records: list[TraceRecord], *, name: str, caching: bool = True, **options: bool
) -> LoadRun:
    texts = TextSource(lambda text: model.tokenizer.encode(text, add_special_tokens=False), read_sentences())
    core = model.new_core(model.new_cache(enable_prefix_caching=caching), SchedulerConfig(check_invariants=True))
    runner = LoadRunner(core, RealClock(), texts, name=name, temperature=0.8, **options)
    run = runner.run(records)
    model.forget(runner.request_ids)
    return run


FIRST = (TextPart("a", 0, 40),)
CONVERSATION = [
    TraceRecord(index=0, arrival_s=0.0, prompt=FIRST, num_output_tokens=5),
    TraceRecord(
        index=1, arrival_s=0.01, after=0, prompt=(*FIRST, AnswerPart(0), TextPart("b", 0, 9)), num_output_tokens=3
    ),
]


def test_a_follow_up_contains_the_answer_and_reads_it_from_the_cache(model: LoadedModel) -> None:
    first, second = play(model, CONVERSATION, name="conversation").requests
    assert len(first.token_ids) == len(first.token_times_s) == 5
    assert second.prompt_token_ids[:45] == first.prompt_token_ids + first.token_ids
    assert second.num_cached_tokens == 32  # whole blocks of the 44 tokens that were computed
    assert first.finished_s is not None
    assert second.arrival_s == pytest.approx(first.finished_s + 0.01)


def test_outputs_do_not_depend_on_the_cache_and_the_executor_forgets(model: LoadedModel) -> None:
    runs = [play(model, CONVERSATION, name=f"cache-{caching}", caching=caching) for caching in (True, False)]
    assert runs[0].outputs == runs[1].outputs
    assert runs[1].hit_share == 0.0
    assert model.executor._requests == {}


def test_samples_are_the_same_whether_they_share_blocks_or_not(model: LoadedModel) -> None:
    records = [TraceRecord(index=0, arrival_s=0.0, prompt=FIRST, num_output_tokens=6, n=3)]
    shared = play(model, records, name="shared", caching=False)
    alone = play(model, records, name="alone", caching=False, shares_samples=False)
    assert shared.outputs == alone.outputs
    assert len(set(shared.outputs)) == 3
    assert len(shared.works) == len(shared.steps)


def test_percentiles_interpolate_between_ranks() -> None:
    assert percentile([], 50) == 0.0
    assert percentile([1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([1.0, 2.0], 75) == 1.75


def test_log_probabilities_are_of_each_token_but_the_first(model: LoadedModel) -> None:
    token_ids = [5, 6, 7, 8, 9]
    logprobs = token_logprobs(model.executor, token_ids, block_size=16)
    assert len(logprobs) == 4
    assert all(value < 0.0 for value in logprobs)
    assert token_logprobs(model.executor, token_ids[:3], block_size=16) == logprobs[:2]
