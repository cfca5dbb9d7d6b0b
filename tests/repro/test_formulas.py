"""What the tables are computed from, against cases computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from kvist.bench.load_run import LoadRun, RequestRun
from kvist.bench.perplexity import perplexity
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import ExecutorConfig
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.request import PUBLIC_DOMAIN, RequestId, pack_token_ids
from kvist.core.request_events import StepSummary
from kvist.costmodel.step_work import StepWork
from kvist.kvcache.kv_cache import KVCache
from kvist.metrics.step_record import OperationTime
from kvist.metrics.utilization import BestRates
from kvist.repro.best_rates import utilization_of
from kvist.repro.fastgen import ServiceLevel, slowest_gap_s
from kvist.repro.kv_usage import KVUsage
from kvist.repro.lost_time import lost_time
from kvist.repro.measured_engine import at_once, spread, spread_of_ratio, total_tokens
from kvist.repro.paged import region_tokens
from kvist.repro.prefix_maximum import possible_cached_tokens
from kvist.repro.radix import tight_pool_tokens
from kvist.repro.reserving_cache import ReservingKVCache
from kvist.repro.setting import ReproSetting
from kvist.repro.speculation import decode_speed, time_to_all_s
from kvist.repro.virtual_hits import virtual_hits
from kvist.workload.load_file import frozen_loads
from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord

A = RequestId("a")


def step(seconds: float, num_running: int, num_waiting: int = 0) -> StepSummary:
    return StepSummary(
        step_id=0,
        time_s=0.0,
        step_time_s=seconds,
        num_scheduled_tokens=0,
        num_prefill_tokens=0,
        num_decode_tokens=0,
        num_padding_tokens=0,
        num_running=num_running,
        num_waiting=num_waiting,
        num_free_blocks=0,
        num_evictable_blocks=0,
        num_total_blocks=0,
    )


def test_the_possible_is_the_longest_prefix_shared_with_anything_before() -> None:
    requests = [
        ([1, 2, 3, 4], [9, 9]),
        ([1, 2, 3, 5], [8]),  # shares 1 2 3
        ([1, 2, 3, 4, 9, 9, 7], [6]),  # the first one's prompt and its answer but for the last token
        ([1, 2, 3, 4], [9]),  # all of it, but one token is always computed
        ([7, 7], [1]),  # nothing
    ]
    assert possible_cached_tokens(requests) == [0, 3, 5, 3, 0]


def test_without_outputs_the_possible_is_all_tokens_less_the_edges_of_the_tree() -> None:
    prompts = [[1, 2, 300, 70000], [1, 2, 300, 5], [1, 9, 9, 9], [4, 4, 4, 4]]
    num_edge_tokens = 4 + 1 + 3 + 4
    for order in (prompts, prompts[::-1]):
        assert sum(possible_cached_tokens((prompt, []) for prompt in order)) == 16 - num_edge_tokens


def test_waste_counts_slots_without_a_token_and_weighs_steps_by_time() -> None:
    cache = KVCache(num_blocks=8, enable_prefix_caching=False)
    prompt = list(range(20))
    table = cache.admit(
        A, PUBLIC_DOMAIN, pack_token_ids(prompt), cache.match(PUBLIC_DOMAIN, pack_token_ids(prompt), max_tokens=19)
    )
    cache.grow(table, num_tokens=20, write_from=0)
    usage = KVUsage(cache)
    request = RequestRun(0, 0, 0.0, prompt)
    usage.note(step(1.0, 1), {A: request})  # 20 tokens in 32 slots
    request.token_ids = list(range(12))
    usage.note(step(3.0, 1, num_waiting=2), {A: request})  # 32 in 32
    assert usage.waste_share == pytest.approx(1 - (20 + 3 * 32) / (4 * 32))
    assert usage.mean_running_while_some_wait == 1.0
    assert usage.shared_share == 0.0


def test_shared_blocks_count_once() -> None:
    cache = KVCache(num_blocks=8)
    packed = pack_token_ids(list(range(33)))
    first = cache.admit(A, PUBLIC_DOMAIN, packed, cache.match(PUBLIC_DOMAIN, packed, max_tokens=32))
    cache.grow(first, num_tokens=33, write_from=0)
    cache.commit(first, packed, num_computed_tokens=32)
    other = cache.admit(RequestId("b"), PUBLIC_DOMAIN, packed, cache.match(PUBLIC_DOMAIN, packed, max_tokens=32))
    cache.grow(other, num_tokens=33, write_from=32)
    usage = KVUsage(cache)
    usage.note(step(1.0, 2), {})
    assert usage.shared_share == pytest.approx(2 / 6)


def test_a_reservation_is_contiguous_and_bounds_how_many_run() -> None:
    cache = ReservingKVCache(num_blocks=10, block_size=16, max_model_len=64)
    assert cache.num_regions == 2
    packed = pack_token_ids([1, 2, 3])
    match = cache.match(PUBLIC_DOMAIN, packed, max_tokens=2)
    tables = [cache.admit(RequestId(name), PUBLIC_DOMAIN, packed, match) for name in "ab"]
    assert [table.block_ids for table in tables] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cache.num_available_blocks == 0
    assert cache.grow(tables[0], num_tokens=64, write_from=3) is None
    cache.release(tables[0])
    assert cache.num_available_blocks > 0
    assert cache.num_free_blocks == 4


@pytest.mark.parametrize(("longest", "region"), [(1, 16), (512, 512), (513, 528), (4194, 4208)])
def test_a_region_holds_the_longest_request_in_whole_blocks(longest: int, region: int) -> None:
    assert region_tokens(longest, 16) == region


def test_the_usual_size_of_a_load_gives_way_to_an_asked_one() -> None:
    def num_requests(scale: float | None) -> int:
        setting = ReproSetting(
            model_path=Path(), model=ModelConfig(), cache=CacheConfig(), executor=ExecutorConfig(),
            is_quick=False, scale=scale, repeats=1, say=lambda text: None,
        )  # fmt: skip
        return len(setting.load("few_shot", {}, usual=0.125).records(capacity_per_s=1.0))

    assert (num_requests(None), num_requests(0.25), num_requests(1.0)) == (12, 24, 96)


def test_a_tight_pool_is_a_share_of_what_sessions_hold_at_their_end() -> None:
    def record(index: int, after: int | None, prompt: tuple[TextPart | AnswerPart, ...]) -> TraceRecord:
        return TraceRecord(index=index, arrival_s=0.0, prompt=prompt, num_output_tokens=10, after=after)

    first = (TextPart("x", 0, 400),)
    records = [
        record(0, None, first),
        record(1, 0, (*first, AnswerPart(0), TextPart("y", 0, 20))),  # ends its session at 440 tokens
        record(2, None, first),  # ends at 410
    ]
    assert tight_pool_tokens(records, 0.9) == 765
    assert tight_pool_tokens(records, 0.5) == 504  # the longest request and a little must fit


def test_spread_is_the_range_over_the_median() -> None:
    assert spread([1.0]) is None
    assert spread([1.0, 2.0, 4.0]) == 1.5
    assert spread_of_ratio([2.0, 3.0], [1.0, 1.0]) == pytest.approx(1 / 2.5)


def test_a_service_level_asks_for_a_prompt_speed_and_for_every_smoothed_gap() -> None:
    level = ServiceLevel(prompt_per_s=10.0, answer_per_s=2.0)
    request = RequestRun(0, 0, 1.0, [0] * 20)
    assert not level.is_met(request)
    request.token_times_s = [2.9, 3.3, 3.7]
    assert level.is_met(request)  # 1.9 s for 20 tokens, gaps of 0.4 s
    request.token_times_s = [3.1, 3.5, 3.9]
    assert not level.is_met(request)
    request.token_times_s = [2.9, 3.3, 4.4]  # one slow gap: 0.4 + 0.1 * (1.1 - 0.4) = 0.47
    assert level.is_met(request)
    assert slowest_gap_s([0.4, 1.1]) == pytest.approx(0.47)
    assert slowest_gap_s([]) == 0.0


def test_decode_speed_is_that_of_all_streams_together() -> None:
    runs = [RequestRun(0, 0, 0.0, [1]), RequestRun(1, 0, 0.0, [1])]
    runs[0].token_times_s = [1.0, 2.0, 3.0]
    runs[1].token_times_s = [1.5, 2.5]
    assert decode_speed(LoadRun(runs, [], [], 3.0)) == pytest.approx(2 / 1.0)
    assert time_to_all_s(LoadRun(runs, [], [], 3.0)) == 2.0


def test_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    assert perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4.0)


def test_hits_of_a_whole_load_are_the_possible_but_for_what_fills_no_block() -> None:
    texts = TextSource(lambda text: [1 + ord(character) % 199 for character in text], read_sentences())
    records = at_once(frozen_loads().load("few_shot").records(capacity_per_s=1.0)[:6])
    scheduler = SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=4)
    hits = virtual_hits(texts, records, scheduler, num_blocks=total_tokens(records) // 16 + 1)
    assert hits.num_requests == 6
    assert 0.96 <= hits.share_of_possible <= 1.0
    assert virtual_hits(texts, records, scheduler, num_blocks=total_tokens(records) // 16 + 1) == hits


def test_lost_time_is_what_operations_take_beyond_their_best_and_what_lies_outside_them() -> None:
    rates = BestRates(token_s=0.01, pair_s=0.001, decode_key_s=0.002, sampled_row_s=0.1)
    works = [StepWork.of([(4, 0)], num_sampled=0), StepWork.of([(2, 4), (1, 7)], num_sampled=1)]
    summaries = [
        msgspec.structs.replace(step(1.0, 1), time_s=1.0, num_prefill_tokens=4),
        msgspec.structs.replace(step(2.0, 2), time_s=3.5, num_prefill_tokens=2),
        msgspec.structs.replace(step(9.0, 2), time_s=13.0),  # prompts no longer wait
    ]
    works.append(StepWork.of([(1, 8)], num_sampled=1))
    operations = [
        [OperationTime("linear", 0.6), OperationTime("attention", 0.3)],
        [OperationTime("linear", 1.0), OperationTime("attention_merge", 0.5)],
        [],
    ]
    run = LoadRun([], summaries, works, elapsed_s=14.0)
    lost = lost_time(rates, run, operations)
    assert lost is not None
    pairs, keys = sum(work.prefill_pairs for work in works[:2]), 8
    assert lost.products == pytest.approx((1.6 - 0.07 - 0.1) / 3.5)
    assert lost.attention == pytest.approx((0.8 - 0.001 * pairs - 0.002 * keys) / 3.5)
    assert lost.outside == pytest.approx((3.0 - 2.4) / 3.5)
    assert lost.between == pytest.approx(0.5 / 3.5)
    whole = lost.products + lost.attention + lost.outside + lost.between
    assert whole == pytest.approx(1.0 - utilization_of(rates, run, while_prompts_wait=True))
    assert lost_time(rates, run, [[], *operations[1:]]) is None
