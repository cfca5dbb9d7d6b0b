"""Runs a search's tasks on all cores, and shows how far it is."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic

from kvist.bench.worker_processes import worker_processes
from kvist.planner.evaluation import GC_THRESHOLD, PlanningProblem
from kvist.planner.search import Item, Result, RunAll, run_here

LINE_EVERY = 20  # tasks between lines where there is no terminal


@contextmanager
def task_runner(
    problem: PlanningProblem, *, num_processes: int | None = None, what: str = "candidates"
) -> Iterator[RunAll]:
    """Hand out what evaluates tasks, in order, on so many processes; by default one for each core that may be used.

    what: is counted, in words.
    """
    gc.set_threshold(GC_THRESHOLD)
    count = num_processes or len(os.sched_getaffinity(0))
    if count == 1:
        yield _counted(run_here(problem), what)
        return
    with worker_processes(count) as pool:

        def run_all(job: Callable[[Item, PlanningProblem], Result], items: Sequence[Item]) -> Iterable[Result]:
            return pool.map(_Job(job, problem), items)

        yield _counted(run_all, what)


@dataclass(frozen=True, slots=True)
class _Job(Generic[Item, Result]):
    """What goes to each process once."""

    job: Callable[[Item, PlanningProblem], Result]
    problem: PlanningProblem

    def __call__(self, item: Item) -> Result:
        return self.job(item, self.problem)


def _counted(run_all: RunAll, what: str) -> RunAll:
    """The same, and results are counted on standard error as they come."""

    def run(job: Callable[[Item, PlanningProblem], Result], items: Sequence[Item]) -> Iterable[Result]:
        return _show(run_all(job, items), len(items), what)

    return run


def _show(results: Iterable[Result], total: int, what: str) -> Iterator[Result]:
    if not total:
        return
    if not sys.stderr.isatty():
        for number, found in enumerate(results, 1):
            if number % LINE_EVERY == 0 or number == total:
                print(f"kvist: {number} of {total} {what} simulated", file=sys.stderr, flush=True)
            yield found
        return
    # Here, because only a terminal needs it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(f"simulating {what}", total=total)
        for found in results:
            bars.advance(bar)
            yield found
