"""What the online fit promises, whatever it has seen; and that it learns from what steps really look like."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.costmodel.online_step_time import OnlineStepTimeModel
from kvist.costmodel.step_time_model import KnownStepTimes
from kvist.costmodel.step_work import StepWork

COUNTS = StepWork.__struct_fields__

works = st.builds(
    StepWork.of,
    st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 8000)), max_size=20),
    num_sampled=st.integers(0, 20),
)
seconds = st.one_of(st.floats(1e-6, 100.0), st.sampled_from([0.0, -1.0, math.inf, math.nan]))
histories = st.lists(st.tuples(works, seconds), max_size=40)


def taught(history: list[tuple[StepWork, float]]) -> OnlineStepTimeModel:
    model = OnlineStepTimeModel()
    for work, step_time_s in history:
        model.observe(work, step_time_s)
    return model


def steps(count: int, seed: int = 1) -> Iterator[StepWork]:
    """Decodes of a few streams, some with a chunk of a prompt beside them."""
    draw = random.Random(seed)
    for _ in range(count):
        chunks = [(1, draw.randint(50, 2000)) for _ in range(draw.randint(1, 12))]
        if draw.random() < 0.4:
            chunks.append((draw.randint(8, 256), draw.choice([0, 300, 1500])))
        yield StepWork.of(chunks, num_sampled=len(chunks))


def true_s(work: StepWork) -> float:
    return 0.004 + 3e-4 * work.num_tokens + 8e-7 * work.decode_context_tokens + 1e-7 * work.prefill_pairs


def errors(model: OnlineStepTimeModel, factor: float = 1.0) -> list[float]:
    return sorted(abs(model.predict_s(work) / (factor * true_s(work)) - 1.0) for work in steps(200, seed=9))


@given(histories, works)
def test_predictions_are_positive_numbers_whatever_was_observed(
    history: list[tuple[StepWork, float]], work: StepWork
) -> None:
    model = taught(history)
    assert 0.0 < model.predict_s(work) < math.inf
    assert 0.0 <= model.margin_s(work) < math.inf


@given(histories, works, st.sampled_from(COUNTS), st.integers(0, 10_000))
def test_no_count_makes_a_step_shorter(
    history: list[tuple[StepWork, float]], work: StepWork, count: str, more: int
) -> None:
    model = taught(history)
    grown = msgspec.structs.replace(work, **{count: getattr(work, count) + more})
    assert model.predict_s(grown) >= model.predict_s(work)


def test_fifty_steps_are_enough_to_learn_a_machine() -> None:
    model = taught([(work, true_s(work)) for work in steps(50)])
    found = errors(model)
    assert found[len(found) // 2] < 0.1
    assert found[9 * len(found) // 10] < 0.25


def test_steps_that_were_held_up_do_not_count_for_much() -> None:
    draw = random.Random(3)
    history = [(work, true_s(work) * (8.0 if draw.random() < 0.05 else 1.0)) for work in steps(400)]
    found = errors(taught(history))
    assert found[len(found) // 2] < 0.1


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_becomes_faster_or_slower_is_followed_within_thirty_steps(factor: float) -> None:
    model = taught([(work, true_s(work)) for work in steps(300)])
    for work in steps(30, seed=5):
        model.observe(work, factor * true_s(work))
    found = errors(model, factor)
    assert found[len(found) // 2] < 0.1


def test_the_margin_covers_nineteen_steps_in_twenty() -> None:
    draw = random.Random(4)
    model = OnlineStepTimeModel()
    num_above = 0
    for number, work in enumerate(steps(1200)):
        step_time_s = true_s(work) * math.exp(draw.gauss(0.0, 0.1))
        num_above += number >= 200 and step_time_s > model.predict_s(work) + model.margin_s(work)
        model.observe(work, step_time_s)
    assert 0.02 < num_above / 1000 < 0.1


def test_the_margin_is_wide_at_first_and_narrows_as_steps_go_as_predicted():
    work = StepWork.of([(64, 0)], num_sampled=1)
    model = OnlineStepTimeModel()
    assert model.margin_s(work) == pytest.approx(0.5 * model.predict_s(work))
    for step in steps(100):
        model.observe(step, true_s(step))
    assert model.margin_s(work) < 0.2 * model.predict_s(work)


def test_it_starts_slow_and_from_timed_steps_where_there_are_some() -> None:
    work = StepWork.of([(64, 0)], num_sampled=1)
    assert OnlineStepTimeModel().predict_s(work) > 2.0 * true_s(work)
    timed = [(num_tokens, true_s(StepWork.of([(num_tokens, 0)], num_sampled=1))) for num_tokens in (16, 64, 256, 1024)]
    assert OnlineStepTimeModel(timed * 3).predict_s(work) == pytest.approx(true_s(work), rel=0.3)


def test_known_step_times_learn_nothing() -> None:
    known = KnownStepTimes(OnlineStepTimeModel())
    work = StepWork.of([(1, 100)], num_sampled=1)
    before = known.predict_s(work), known.margin_s(work)
    known.observe(work, 100.0)
    assert (known.predict_s(work), known.margin_s(work)) == before
