"""Processes that compute for this one, and that end when it does, however it ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `count` processes. Where the block raises, as on Ctrl-C, what they compute is dropped at once."""
    pool = ProcessPoolExecutor(count, initializer=_follow_parent, initargs=(os.getpid(),))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children():
            worker.kill()
        raise
    pool.shutdown()


def _follow_parent(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it: workers hold both ends of their queue, so none ever breaks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
