"""Thread limits follow the option and the cgroup."""

from __future__ import annotations

import os

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from kvist.execution.threads import granted_cores, limit_blas_threads


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


def test_asked_threads_are_used():
    with threadpool_limits():  # put back afterwards what was in force
        assert limit_blas_threads(1) == 1
        assert all(library["num_threads"] == 1 for library in threadpool_info() if library["user_api"] == "blas")
