"""Runs a search's tasks on all cores, and shows how far it is."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

from kvist.planner.evaluation import Evaluation, PlanningProblem
from kvist.planner.search import RunAll, Task, run_here, run_task

LINE_EVERY = 20  # tasks between lines where there is no terminal
GC_THRESHOLD = 200_000  # simulations make many objects and few cycles


@contextmanager
def task_runner(problem: PlanningProblem, *, num_processes: int | None = None) -> Iterator[RunAll]:
    """Hand out what evaluates tasks, in order, on so many processes; by default one for each core that may be used."""
    gc.set_threshold(GC_THRESHOLD)
    count = num_processes or len(os.sched_getaffinity(0))
    if count == 1:
        yield partial(_counted, run_here(problem))
        return
    with ProcessPoolExecutor(count) as pool:

        def run_all(tasks: Sequence[Task]) -> Iterable[Evaluation]:
            return pool.map(partial(run_task, problem=problem), tasks)

        yield partial(_counted, run_all)


def _counted(run_all: RunAll, tasks: Sequence[Task]) -> Iterator[Evaluation]:
    """The evaluations as they come, counted on standard error."""
    if not tasks:
        return
    if not sys.stderr.isatty():
        for number, found in enumerate(run_all(tasks), 1):
            if number % LINE_EVERY == 0 or number == len(tasks):
                print(f"kvist: {number} of {len(tasks)} candidates simulated", file=sys.stderr, flush=True)
            yield found
        return
    # Here, because only a terminal needs it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("simulating candidates", total=len(tasks))
        for found in run_all(tasks):
            bars.advance(bar)
            yield found
