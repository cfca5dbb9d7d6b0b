"""What the native head finds in its logits is what NumPy finds in them, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes.plan_loop import PlanLoop

from kvist.core.sampling_params import SamplingParams
from kvist.execution.logits import NumpyRow

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.execution.native import _native
from kvist.execution.native.runner import NativeRow

SIZES = (1, 15, 16, 17, 500, 8192, 20_001)


def head_row(isa: str, logits: np.ndarray, *, softcap: float = 0.0) -> NativeRow:
    """A head whose only row is `logits`; its body is a plan whose one buffer they stand in."""
    width = -(-len(logits) // 16) * 16
    pool = _native.ThreadPool(2)
    body, head = _native.Plan(isa, pool, 1, 1), _native.Plan(isa, pool, 1, 1)
    source, rows = body.buffer(width), head.buffer(width)
    head.gather(body, source, width, rows)
    head.best_logits(rows, len(logits), softcap)
    body.view(source)[:] = np.inf  # what stands behind the last logit is nobody's business
    body.view(source)[0, : len(logits)] = logits
    head.replay_head(np.zeros(1, np.int32), timed=False)
    return NativeRow(head, head.view(rows)[0, : len(logits)], int(head.best()[0]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("isa", _native.isas())
def test_best_and_top_are_those_of_numpy_with_equals_in_order(isa, size):
    random = np.random.default_rng(size)
    for logits in (
        random.integers(-3, 3, size) / 4,
        random.standard_normal(size),
        np.sort(random.standard_normal(size)),
    ):
        ours, plain = head_row(isa, logits.astype(np.float32)), NumpyRow(logits.astype(np.float32))
        assert ours.best == plain.best
        for count in (0, 1, 7, size, size + 1):
            for got, wanted in zip(ours.top(count), plain.top(count), strict=True):
                np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize(("temperature", "min_p"), [(1.0, 0.0), (0.4, 0.1), (50.0, 0.0), (1e-4, 0.0)])
def test_weights_and_draws_are_those_of_numpy_and_equal_on_all_instruction_sets(isa, size, temperature, min_p):
    random = np.random.default_rng(size)
    logits = (3 * random.standard_normal(size)).astype(np.float32)
    logits[1::7] = -np.inf  # forbidden
    ours, portable = (head_row(name, np.zeros(1)).with_values(logits) for name in (isa, "portable"))
    plain = NumpyRow(logits)
    assert ours.weight_sum(temperature) == portable.weight_sum(temperature)
    assert ours.weight_sum(temperature) == pytest.approx(plain.weight_sum(temperature), rel=2e-6)
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    edges = np.cumsum(np.where(weights < min_p, 0, weights)) / np.where(weights < min_p, 0, weights).sum()
    for u in (0.0, *random.random(20), 1 - 2**-52):
        drawn = ours.draw(temperature, min_p, u)
        assert drawn == portable.draw(temperature, min_p, u)
        assert weights[drawn] > 0.999 * max(min_p, 1e-37)
        if np.abs(edges - u).min() > 1e-5:  # on an edge rounding decides
            assert drawn == plain.draw(temperature, min_p, u)


@pytest.mark.parametrize("poison", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("at", [0, 16, 8191, 8192, 19_999])
def test_a_row_that_is_not_finite_has_no_best(at, poison):
    logits = np.zeros(20_000, np.float32)
    logits[at] = poison
    assert head_row("", logits).best == -1


def test_logits_are_capped_smoothly():
    logits = np.linspace(-200, 300, 77).astype(np.float32)
    np.testing.assert_allclose(head_row("", logits, softcap=30.0).values, 30 * np.tanh(logits / 30), rtol=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0, max_tokens=None),
        SamplingParams(temperature=0, max_tokens=None, min_tokens=3, stop_token_ids=(1, 2)),
        SamplingParams(temperature=1.5, top_k=20, seed=5, max_tokens=None),
        SamplingParams(temperature=0.8, top_k=64, top_p=0.9, min_p=0.01, seed=6, max_tokens=None),
        SamplingParams(temperature=1.0, seed=7, max_tokens=None, logprobs=4),
        SamplingParams(temperature=0.9, top_p=0.8, seed=8, max_tokens=None),
        SamplingParams(temperature=1.2, min_p=0.02, repetition_penalty=1.3, seed=9, max_tokens=None),
    ],
)
def test_requests_get_the_tokens_that_the_sampler_draws_from_copied_logits(tiny_executor, sampling, monkeypatch):
    def generate():
        loop = PlanLoop(tiny_executor("llama", "q8_0", executor="native"))
        for i in range(3):
            loop.add(f"request{i}", [7 + i, 8, 9], sampling)
        loop.generate(12)
        return [loop.requests[f"request{i}"].output for i in range(3)]

    ours = generate()
    monkeypatch.setattr("kvist.execution.model_executor.takes_best", lambda *_: False)
    monkeypatch.setattr(
        "kvist.execution.native.runner.NativeLogits.__getitem__",
        lambda self, index: NumpyRow(self._values[index].copy()),
    )
    assert generate() == ours


def test_a_plan_lies_in_what_it_borrows_as_far_as_that_has_room():
    pool = _native.ThreadPool(1)
    lender, plan = _native.Plan("", pool, 4, 1), _native.Plan("", pool, 4, 1)
    own = plan.buffer(48)
    own_bytes, lent = plan.workspace_bytes, lender.buffer(64)
    plan.borrow(lender, lent)
    inside = plan.buffer(48)
    assert plan.workspace_bytes == own_bytes
    beyond = plan.buffer(48)  # 768 bytes, and 256 are left
    assert plan.workspace_bytes == 2 * own_bytes
    for value, buffer in enumerate((own, inside, beyond)):
        plan.view(buffer)[:] = value
    lent_view = lender.view(lent).reshape(-1)
    assert (lent_view[: 4 * 48] == 1).all()
    del lender, lent_view
    for value, buffer in enumerate((own, inside, beyond)):
        assert (plan.view(buffer) == value).all()
    with pytest.raises(RuntimeError, match="borrows already"):
        plan.borrow(_native.Plan("", pool, 4, 1), 0)
