"""Workers end with the process that they work for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvist.bench.worker_processes import worker_processes
from kvist.core.errors import ConfigError, KvistError, QueueFullError

BUSY = """
import os, time
from kvist.bench.worker_processes import worker_processes
with worker_processes(1) as workers:
    print(*workers.map(eval, ["__import__('os').getpid()"]), flush=True)
    list(workers.map(time.sleep, [100]))
"""


SIZE = 1 << 22  # bytes, more than a pipe holds


def own_id(_: int) -> int:
    return os.getpid()


def sleep_if_odd(number: int) -> int:
    time.sleep(100 * (number % 2))
    return number


def later_for_the_first(number: int) -> int:
    time.sleep(0.0 if number else 0.05)
    return number


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def leave_at_three(number: int) -> int:
    if number == 3:
        os._exit(7)
    return number


def length_of(item: bytes) -> int:
    return len(item)


def large_answer(_: int) -> bytes:
    return bytes(SIZE)


def refuse_odd(number: int) -> int:
    if number % 2:
        raise ConfigError(f"{number} is odd")
    return number


def refuse_in_words_that_stay(_: int) -> int:
    raise QueueFullError("full", retry_after_s=1.0)  # cannot be pickled


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
        with worker_processes(2) as workers:
            next(workers.map(sleep_if_odd, range(2)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    for child in multiprocessing.active_children():
        child.join(100)
    assert not multiprocessing.active_children()


def test_results_come_back() -> None:
    with worker_processes(2) as workers:
        assert list(workers.map(abs, [-1, 2])) == [1, 2]
        assert list(workers.map(abs, [])) == []
        assert os.getpid() not in workers.map(own_id, range(4))


@pytest.mark.parametrize(("job", "how"), [(die_at_three, "ended by signal 9"), (leave_at_three, "exit code 7")])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_process_that_ends_early_is_told(count: int, job: Callable[[int], int], how: str) -> None:
    with pytest.raises(KvistError, match=how), worker_processes(count) as workers:
        list(workers.map(job, range(20)))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("place", [0, 1])
def test_a_process_killed_in_the_midst_of_a_large_answer_is_told(place: int) -> None:
    with worker_processes(2) as workers:
        answers = workers.map(large_answer, range(12))
        next(answers)
        os.kill(workers.process_ids[place], signal.SIGKILL)
        with pytest.raises(KvistError, match="ended by signal 9"):
            list(answers)


def test_a_process_killed_before_a_large_item_is_told() -> None:
    with worker_processes(2) as workers:
        os.kill(workers.process_ids[1], signal.SIGKILL)
        with pytest.raises(KvistError, match="ended by signal 9"):
            list(workers.map(length_of, [bytes(SIZE)] * 4))


def test_errors_of_jobs_come_back_in_place_and_the_processes_go_on() -> None:
    with worker_processes(2) as workers:
        answers = workers.map(refuse_odd, range(9))
        assert next(answers) == 0
        with pytest.raises(ConfigError, match="1 is odd"):
            next(answers)
        with pytest.raises(KvistError, match="QueueFullError: full"):
            list(workers.map(refuse_in_words_that_stay, [0]))
        assert list(workers.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]


def test_jobs_in_turns_get_their_own_answers() -> None:
    with worker_processes(2) as workers:
        positive, lengths = workers.map(abs, range(-9, 0)), workers.map(len, ["", "a", "bc"])
        assert [next(positive), next(lengths), next(positive), *lengths, *positive] == [9, 0, 8, 1, 2, *range(7, 0, -1)]


def test_answers_come_in_order_beside_a_slow_one() -> None:
    with worker_processes(3) as workers:
        assert list(workers.map(later_for_the_first, range(12))) == list(range(12))
