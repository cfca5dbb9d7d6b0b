"""Thread limits follow the option and the cgroup."""

from __future__ import annotations

import os

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from kvist.execution.threads import MatrixProducts, granted_cores


def test_granted_cores_respect_the_cgroup_quota(tmp_path):
    limit = tmp_path / "cpu.max"
    limit.write_text("100000 100000\n")
    assert granted_cores(limit) == 1
    limit.write_text("50000 100000\n")
    assert granted_cores(limit) == 1


@pytest.mark.parametrize("content", [None, "max 100000\n", "unreadable"])
def test_granted_cores_without_quota_are_those_of_the_process(tmp_path, content):
    limit = tmp_path / "cpu.max"
    if content is not None:
        limit.write_text(content)
    assert granted_cores(limit) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [1, 7, 64])
def test_products_on_any_number_of_threads_are_those_of_numpy(num_threads, num_rows):
    random = np.random.default_rng(0)
    x = random.standard_normal((num_rows, 600), np.float32)
    products = MatrixProducts(num_threads)
    for num_columns in (1, 5, 1001):
        weight = random.standard_normal((num_columns, 600), np.float32)
        with products.one_blas_thread():
            np.testing.assert_allclose(products.multiply(x, weight), x @ weight.T, atol=1e-4, rtol=1e-4)
    products.close()


def test_blas_threads_are_put_back_after_a_step():
    with threadpool_limits(2, user_api="blas"):
        products = MatrixProducts(3)
        with products.one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {2}
        assert MatrixProducts(None).num_threads <= 2
    products.close()


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
