"""Processes that compute for this one, and that end when it does, however it ends.

Each has a pipe of its own, whose other end nobody else holds. So one that is killed, even in the midst of an answer, is
seen at once, and nothing that it held keeps the others from going on: a shared queue's lock would.
"""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from kvist.core.errors import KvistError

Item = TypeVar("Item")
Result = TypeVar("Result")
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def worker_processes(count: int) -> Iterator[Workers]:
    """So many processes, which know what is in memory now. When the block ends, however, what they compute is dropped.

    Ctrl-C reaches this process alone. Call it where no other thread runs: the processes are forked.
    """
    workers: list[_Worker] = []
    try:
        # Before one of them has said that it leaves Ctrl-C alone, it would end with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(count):
                workers.append(_start())  # noqa: PERF401 - those that began are known if the next one cannot
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield Workers(workers)
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()


@dataclass(slots=True, eq=False)
class _Worker:
    """job: the last one that it was told; is_busy: whether an answer is to come."""

    process: ForkProcess
    pipe: Connection[Any, Any]
    job: int = -1
    is_busy: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    """items: with their places, still to be handed out. answers: by place, those that nobody has asked for yet."""

    number: int
    function: Callable[[Any], Any]
    items: deque[tuple[int, Any]]
    answers: dict[int, tuple[bool, Any]] = field(default_factory=dict)


class Workers:
    def __init__(self, workers: Sequence[_Worker]) -> None:
        self._workers = workers
        self._jobs: dict[int, _Job] = {}
        self._num_jobs = 0

    @property
    def process_ids(self) -> list[int]:
        return [worker.process.pid or 0 for worker in self._workers]

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function` of each item, in their order, computed in any order; begun when the first one is asked for.

        What goes to and from processes is pickled, `function` once for each of them. Raises what `function` raises, and
        KvistError if a process ends in the meantime, as one that is killed does.
        """
        job = _Job(self._num_jobs, function, deque(enumerate(items)))
        self._num_jobs += 1
        self._jobs[job.number] = job
        try:
            for place in range(len(job.items)):
                while place not in job.answers:
                    self._hand_out(job)
                    self._take_answers()
                is_good, answer = job.answers.pop(place)
                if not is_good:
                    raise answer
                yield answer
        finally:
            del self._jobs[job.number]  # answers that are still to come are for nobody

    def _hand_out(self, job: _Job) -> None:
        """Give what is left of the job to those who have nothing to do: these read, so that no pipe can be full."""
        for worker in self._workers:
            if not worker.is_busy and job.items:
                place, item = job.items.popleft()
                function = None if worker.job == job.number else job.function
                try:
                    worker.pipe.send((job.number, place, function, item))
                except OSError:
                    raise _ended(worker) from None
                worker.job, worker.is_busy = job.number, True

    def _take_answers(self) -> None:
        """Wait for one answer at least."""
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(by_pipe)):
            worker = by_pipe[pipe]  # type: ignore[index]  # `wait` hands back what it was given
            try:
                number, place, is_good, answer = worker.pipe.recv()
            except (EOFError, OSError):
                raise _ended(worker) from None
            worker.is_busy = False
            if number in self._jobs:
                self._jobs[number].answers[place] = is_good, answer


def _start() -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    # Forked whatever the default is: started afresh, a process would be the child of another one.
    process = multiprocessing.get_context("fork").Process(target=_work, args=(theirs, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _work(pipe: Connection[Any, Any], parent: int) -> None:
    """Answer until killed."""
    _follow(parent)
    function: Callable[[Any], Any] = repr
    while True:
        number, place, new_function, item = pipe.recv()
        function = new_function or function
        try:
            pipe.send((number, place, True, function(item)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is for who asked
            error.add_note(traceback.format_exc())  # where it was raised: the traceback stays here
            pipe.send((number, place, False, _portable(error)))


def _portable(error: Exception) -> Exception:
    """The error, or where it cannot go to another process, its words."""
    try:
        copy.copy(error)  # by what pickling calls
    except Exception:  # noqa: BLE001 - that is what the error's class defines
        return KvistError(f"{type(error).__name__}: {error}")
    return error


def _ended(worker: _Worker) -> KvistError:
    """For a process that has closed its end of the pipe."""
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
    return KvistError(
        f"process {worker.process.pid}, which computed for this one, {how}: nothing was written. A system short of "
        "memory ends processes so; fewer at once need less (--jobs, or taskset)"
    )


def _follow(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
