"""Workers end with the process that they work for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvist.bench.worker_processes import worker_processes

BUSY = """
import os, time
from kvist.bench.worker_processes import worker_processes
with worker_processes(1) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 100).result()
"""


def is_gone(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"  # ended; whoever inherited it has yet to look


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_parent(sent: signal.Signals) -> None:
    words = [sys.executable, "-c", BUSY]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(sent)
        parent.wait(timeout=100)
    while not is_gone(worker):  # the test's own time limit ends it
        time.sleep(0.01)


def test_what_workers_compute_is_dropped_where_the_block_raises() -> None:
    def interrupted() -> None:
        with worker_processes(1) as pool:
            pool.submit(time.sleep, 100)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    for child in multiprocessing.active_children():
        child.join(100)
    assert not multiprocessing.active_children()


def test_results_come_back() -> None:
    with worker_processes(2) as pool:
        assert list(pool.map(abs, [-1, 2])) == [1, 2]
        assert pool.submit(os.getpid).result() != os.getpid()
