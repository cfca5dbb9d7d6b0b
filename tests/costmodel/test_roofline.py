"""The roofline grows with work, falls with devices, and its parts add up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.core.errors import ConfigError
from kvist.costmodel.device_catalogue import DEVICES, find_device
from kvist.costmodel.efficiency import Efficiency
from kvist.costmodel.error_bar import ErrorBar
from kvist.costmodel.layer_work import layer_work
from kvist.costmodel.memory import device_memory
from kvist.costmodel.model_catalogue import MODELS, find_model_spec
from kvist.costmodel.number_format import find_format
from kvist.costmodel.roofline import Placement, RooflineModel, splits_heads
from kvist.costmodel.step_work import StepWork

BAR = ErrorBar(decode=0.1, prefill=0.2, reason="a test")


def place(
    model: str = "llama-3.1-8b", device: str = "h100", dtype: str = "bf16", tp: int = 1, pp: int = 1
) -> Placement:
    return Placement(
        model=find_model_spec(model),
        device=find_device(device),
        number_format=find_format(dtype),
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
    )


def roofline(placement: Placement) -> RooflineModel:
    return RooflineModel(placement, Efficiency(), BAR)


def decode(batch: int, context: int) -> StepWork:
    return StepWork.of([(1, context)] * batch, num_sampled=batch)


def prefill(num_tokens: int, context: int = 0) -> StepWork:
    return StepWork.of([(num_tokens, context)], num_sampled=1)


@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(sorted(DEVICES)),
    st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 8192)), min_size=1, max_size=6),
    st.tuples(st.integers(1, 512), st.integers(0, 4096)),
)
def test_more_work_never_takes_less_time(
    model: str, device: str, chunks: list[tuple[int, int]], more: tuple[int, int]
) -> None:
    ranks = next(ranks for ranks in (2, 3, 1) if splits_heads(find_model_spec(model), ranks))
    times = roofline(place(model, device, tp=ranks))
    work = StepWork.of(chunks, num_sampled=len(chunks))
    before_s, after_s = times.predict_s(work), times.predict_s(work.plus(*more, is_sampled=True))
    assert 0.0 < before_s <= after_s * (1 + 1e-12)
    assert math.isfinite(after_s)


@pytest.mark.parametrize("ranks", [0, 3, 16, 1024])
def test_ranks_that_do_not_split_the_heads_are_refused(ranks: int) -> None:
    with pytest.raises(ConfigError, match="1, 2, 4, 8, 16, 32 do" if ranks != 16 else "40 query heads"):
        place("qwen2.5-14b" if ranks == 16 else "llama-3.1-8b", tp=ranks)


def test_equal_chunks_are_counted_like_any() -> None:
    for chunk in ((1, 900), (300, 40)):
        assert StepWork.of_equal(7, *chunk, num_sampled=7) == StepWork.of([chunk] * 7, num_sampled=7)


def test_parts_add_up_and_the_margin_is_the_bars_share() -> None:
    times = roofline(place(tp=4, pp=2))
    for work, share in ((decode(16, 900), BAR.decode), (prefill(700), BAR.prefill)):
        parts = times.parts(work)
        assert parts.total_s == pytest.approx(times.predict_s(work))
        assert times.margin_s(work) == pytest.approx(share * parts.total_s)


def test_a_single_token_costs_the_reading_of_the_weights() -> None:
    placement = place("llama-3.1-70b", tp=4)
    parts = roofline(placement).parts(decode(1, 1))
    inner = find_model_spec("llama-3.1-70b").num_parameters or 0
    read_s = 2.0 * (inner - 2 * 128_256 * 8192) / 4 / placement.device.memory_bytes_per_s
    assert read_s < parts.linear_s < 1.4 * read_s


def test_a_long_prompt_costs_its_products() -> None:
    placement = place("llama-2-7b")
    flops = 2.0 * 4096 * (find_model_spec("llama-2-7b").num_parameters or 0)
    least_s = flops / (placement.device.peak("bf16") or 1.0)
    assert least_s < roofline(placement).predict_s(prefill(4096)) < 2.5 * least_s


def test_narrower_weights_make_decoding_faster() -> None:
    work = decode(4, 500)
    times = [roofline(place(dtype=name)).predict_s(work) for name in ("fp32", "bf16", "fp8", "int4")]
    assert times == sorted(times, reverse=True)


def test_experts_that_no_token_chooses_are_not_read() -> None:
    work = layer_work(find_model_spec("mixtral-8x7b"), tensor_parallel_size=1, kv_element_bytes=2.0)
    assert work.active_experts(1) == pytest.approx(2.0)
    assert work.active_experts(2) == pytest.approx(8 * (1 - 0.75**2))
    assert work.active_experts(64) == pytest.approx(8.0, rel=1e-4)
    times = roofline(place("mixtral-8x7b", tp=2))
    assert times.predict_s(decode(16, 512)) > 2.0 * times.predict_s(decode(1, 512))


def test_a_window_bounds_what_attention_reads() -> None:
    full = find_model_spec("llama-2-7b")
    layer = replace(full.layers[0], sliding_window=1024)
    windowed = replace(full, layers=(layer,) * full.num_layers)
    placement = place("llama-2-7b")
    short, long = decode(8, 1000), decode(8, 8000)
    times, limited = roofline(placement), roofline(replace(placement, model=windowed))
    assert limited.predict_s(short) == times.predict_s(short)
    assert limited.predict_s(long) < times.predict_s(long)


def test_stages_send_and_impossible_splits_are_refused() -> None:
    work = prefill(512)
    assert roofline(place(pp=2)).parts(work).pipeline_send_s > 0.0
    with pytest.raises(ConfigError, match="32 layers"):
        place(pp=33)


def test_memory_is_shared_out_without_a_rest() -> None:
    placement = place("llama-3.1-70b", dtype="fp8", tp=2)
    memory = device_memory(placement)
    parts = memory.weight_bytes + memory.activation_bytes + memory.runtime_bytes + memory.kv_pool_bytes
    assert parts + memory.reserve_bytes == pytest.approx(placement.device.memory_bytes)
    assert memory.num_kv_tokens > device_memory(place("llama-3.1-70b", tp=4)).num_kv_tokens / 4


def test_a_model_that_does_not_fit_says_what_it_takes() -> None:
    with pytest.raises(ConfigError, match=r"no room for keys and values"):
        device_memory(place("llama-3.1-70b", tp=1))
