"""The sampler against a slow row-by-row oracle, its order of stages, and its distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.core.random_numbers import uniform
from kvist.core.sampling_params import SamplingParams
from kvist.execution.logits import NumpyLogits, NumpyRow
from kvist.execution.sampler import Sampler, SamplingRow

VOCAB = 12
RAW = Sampler(processed_logprobs=False)
PROCESSED = Sampler(processed_logprobs=True)


def row(params: SamplingParams, *, prompt=(1, 2), output=(), seed=0, sample_index=0, eos=(), mask=None) -> SamplingRow:
    return SamplingRow(
        params=params,
        token_ids=[*prompt, *output],
        num_prompt_tokens=len(prompt),
        seed=seed,
        sample_index=sample_index,
        eos_token_ids=eos,
        token_mask=mask,
    )


def sample_one(logits, sampling_row, sampler=RAW):
    return sampler.sample(NumpyRow(np.array(logits, np.float32)), sampling_row)


def sample_all(logits, sampling_rows, sampler=RAW):
    tile = NumpyLogits(np.asarray(logits, np.float32), [True] * len(sampling_rows))
    return [sampler.sample(tile[i], sampling_row) for i, sampling_row in enumerate(sampling_rows)]


def oracle_logits(logits, r: SamplingRow) -> dict[int, float]:
    """Allowed token -> adjusted logit, one plain stage after another."""
    p = r.params
    values = {i: float(np.float32(x)) for i, x in enumerate(logits)}
    for token, bias in (p.logit_bias or {}).items():
        values[token] += bias
    output = list(r.token_ids[r.num_prompt_tokens :])
    stops = (*p.stop_token_ids, *r.eos_token_ids) if len(output) < p.min_tokens else ()
    allowed = range(VOCAB) if p.allowed_token_ids is None else p.allowed_token_ids
    masked = range(VOCAB) if r.token_mask is None else np.flatnonzero(r.token_mask)
    values = {i: x for i, x in values.items() if i in allowed and i in masked and i not in stops}
    for i in values:
        if i in r.token_ids:
            values[i] = values[i] / p.repetition_penalty if values[i] > 0 else values[i] * p.repetition_penalty
        values[i] -= p.frequency_penalty * output.count(i) + p.presence_penalty * (i in output)
    return values


def oracle_distribution(logits, r: SamplingRow) -> dict[int, float]:
    """Token -> probability, for the tokens that can be drawn."""
    p, values = r.params, oracle_logits(logits, r)
    ranked = sorted(values, key=lambda i: (-values[i], i))
    if p.temperature == 0:
        return {ranked[0]: 1.0}
    weight = {i: math.exp((values[i] - values[ranked[0]]) / p.temperature) for i in ranked}
    if p.top_k:
        ranked = ranked[: p.top_k]
    total, running, kept = sum(weight[i] for i in ranked), 0.0, []
    for i in ranked:
        if running >= p.top_p * total:
            break
        kept.append(i)
        running += weight[i]
    kept = [i for i in kept if weight[i] >= p.min_p]
    total = sum(weight[i] for i in kept)
    return {i: weight[i] / total for i in sorted(kept)}


def oracle_token(logits, r: SamplingRow) -> int:
    distribution = oracle_distribution(logits, r)
    u, running = uniform(r.seed, r.sample_index, r.output_position), 0.0
    for token, probability in distribution.items():
        running += probability
        if running > u:
            return token
    return token


quarters = st.integers(-20, 20).map(lambda n: n / 4)  # few values, so that ties are common

sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, VOCAB + 2),
    top_p=st.sampled_from([1.0, 0.95, 0.61, 0.07]),
    min_p=st.sampled_from([0.0, 0.03, 0.31, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.75, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.25]),
    min_tokens=st.integers(0, 4),
    max_tokens=st.just(16),
    stop_token_ids=st.sampled_from([(), (3,), (5, 6)]),
    logit_bias=st.none() | st.dictionaries(st.integers(0, VOCAB - 1), quarters, max_size=3),
    allowed_token_ids=st.none() | st.just(tuple(range(1, VOCAB))),
)

sampling_rows = st.builds(
    row,
    sampling_params,
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=5),
    seed=st.integers(-(2**63) + 1, 2**63 - 1),
    sample_index=st.integers(0, 4),
    eos=st.sampled_from([(), (2,)]),
    mask=st.none() | st.just(np.array([i != 4 for i in range(VOCAB)])),
)


@settings(max_examples=300, deadline=None)
@given(logits=st.lists(quarters, min_size=VOCAB, max_size=VOCAB), sampling_row=sampling_rows)
def test_every_option_matches_the_oracle(logits, sampling_row):
    distribution = oracle_distribution(logits, sampling_row)
    u = uniform(sampling_row.seed, sampling_row.sample_index, sampling_row.output_position)
    edges = np.cumsum(list(distribution.values()))
    if np.abs(edges - u).min() > 1e-6:  # a draw on the edge of two tokens depends on rounding
        assert sample_one(logits, sampling_row).token_id == oracle_token(logits, sampling_row)


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.lists(quarters, min_size=VOCAB, max_size=VOCAB), min_size=2, max_size=5),
    rows=st.lists(sampling_rows, min_size=5, max_size=5),
)
def test_a_rows_result_does_not_depend_on_the_others(logits, rows):
    rows = rows[: len(logits)]
    together = sample_all(logits, rows, PROCESSED)
    assert together == [sample_one(one, r, PROCESSED) for one, r in zip(logits, rows, strict=True)]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=6),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.1, presence_penalty=0.5),
    ],
)
def test_draws_follow_the_distribution(params):
    logits = np.linspace(-2, 2, VOCAB)
    num_draws = 3000
    rows = [row(params, seed=11, sample_index=i) for i in range(num_draws)]
    drawn = sample_all(np.tile(logits, (num_draws, 1)), rows)
    expected = oracle_distribution(logits, rows[0])
    counts = np.bincount([sampled.token_id for sampled in drawn], minlength=VOCAB)
    assert set(np.flatnonzero(counts)) <= set(expected)
    chi_square = sum((counts[i] - num_draws * p) ** 2 / (num_draws * p) for i, p in expected.items())
    assert chi_square < 31.3  # 11 degrees of freedom, p = 0.001


def test_greedy_takes_the_lowest_of_equal_tokens():
    assert sample_one([0, 3, 1, 3] + [0] * 8, row(SamplingParams(temperature=0))).token_id == 1


def test_a_huge_vocabulary_is_cut_like_a_small_one():
    logits = np.zeros(40_000, np.float32)  # all equal: top_p must walk through thousands of tokens
    sampling_row = row(SamplingParams(temperature=1.0, top_p=0.5, logprobs=0), seed=3)
    drawn = {sample_one(logits, row(SamplingParams(top_p=0.5), seed=s)).token_id for s in range(40)}
    assert max(drawn) < 20_001
    assert sample_one(logits, sampling_row, PROCESSED).logprobs.logprob == pytest.approx(-math.log(20_000), abs=1e-3)


def test_raw_logprobs_ignore_every_option_and_processed_ones_follow_them():
    logits = [float(i) for i in range(VOCAB)]
    params = SamplingParams(temperature=0.5, top_k=2, logit_bias={0: 50.0}, logprobs=3)
    raw = sample_one(logits, row(params)).logprobs
    processed = sample_one(logits, row(params), PROCESSED).logprobs
    total = math.log(sum(math.exp(x) for x in logits))
    assert raw.top_token_ids == [11, 10, 9]
    assert raw.top_logprobs == pytest.approx([11 - total, 10 - total, 9 - total])
    assert processed.top_token_ids == [0, 11]  # only what could have been drawn
    assert processed.token_id == 0
    assert (processed.logprob, processed.rank) == (pytest.approx(0.0), 1)
    assert (raw.logprob, raw.rank) == (pytest.approx(-total), VOCAB)


def test_logprobs_zero_returns_only_the_sampled_token():
    sampled = sample_one([0.0, 1.0] + [0.0] * 10, row(SamplingParams(temperature=0, logprobs=0)))
    assert sampled.logprobs.token_id == 1
    assert sampled.logprobs.top_token_ids == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(logit_bias={VOCAB: 1.0}), "logit_bias: 12 is no token"),
        (SamplingParams(allowed_token_ids=(-1,)), "allowed_token_ids: -1 is no token"),
        (SamplingParams(allowed_token_ids=()), "forbid every token"),
        (SamplingParams(temperature=0, allowed_token_ids=()), "forbid every token"),
        (SamplingParams(allowed_token_ids=(3,), stop_token_ids=(3,), min_tokens=1), "forbid every token"),
    ],
)
def test_impossible_options_fail_their_row_alone(params, message):
    logits = np.zeros((2, VOCAB), np.float32)
    failed, fine = sample_all(logits, [row(params), row(SamplingParams(temperature=0))])
    assert failed.token_id is None
    assert message in failed.error
    assert fine.token_id == 0


def test_min_tokens_bans_stops_only_until_enough_are_out():
    params = SamplingParams(temperature=0, min_tokens=2, max_tokens=8, stop_token_ids=(5,))
    logits = [0.0] * VOCAB
    logits[5], logits[7], logits[2] = 3.0, 2.0, 1.0
    tokens = [sample_one(logits, row(params, output=[9] * n, eos=(7,))).token_id for n in range(4)]
    assert tokens == [2, 2, 5, 5]


def test_scores_of_prompt_tokens_follow_the_logprobs_mode():
    logits = np.arange(VOCAB, dtype=np.float32)
    sampling_row = row(SamplingParams(temperature=2.0, prompt_logprobs=1))
    raw, processed = (sampler.score(NumpyRow(logits), sampling_row, 4, 1) for sampler in (RAW, PROCESSED))
    assert raw.rank == processed.rank == VOCAB - 4
    assert processed.logprob == pytest.approx(4 / 2 - math.log(sum(math.exp(i / 2) for i in range(VOCAB))))
    assert raw.logprob == pytest.approx(4 - math.log(sum(math.exp(i) for i in range(VOCAB))))
