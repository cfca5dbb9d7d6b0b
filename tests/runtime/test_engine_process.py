"""The engine in a process of its own: what happens when either side dies or talks nonsense."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.runtime.clients import (
    COMMAND,
    LONG,
    events_of,
    finish_of,
    is_at_rest,
    named,
    new_request,
    simulated_config,
)

from kvist.core.errors import EngineUnavailableError
from kvist.core.request import FinishReason
from kvist.runtime import supervised_client
from kvist.runtime.engine_launch import launch_engine
from kvist.runtime.engine_link import EngineLink
from kvist.runtime.process_link import ProcessLink
from kvist.runtime.real_clock import RealClock
from kvist.runtime.supervised_client import SupervisedEngineClient

PARENT = """
import asyncio, sys
from tests.runtime.clients import LONG, events_of, make_client, new_request, simulated_config

async def main():
    client = make_client("process", simulated_config())
    await client.start()
    print(client._link.pid, flush=True)
    await events_of(client, new_request("long", max_tokens=LONG))
    await asyncio.sleep(60)

asyncio.run(main())
"""


ORPHAN = """
import os, socket, sys
from tests.runtime.clients import simulated_config
from kvist.core.errors import ConfigError
from kvist.runtime import engine_process
from kvist.runtime.messages import Configure, StartPhase
from kvist.runtime.real_clock import RealClock
from kvist.runtime.transport import FrameEncoder

ours, theirs = socket.socketpair()
ours.sendall(FrameEncoder().encode(Configure(simulated_config())))
engine_process._read_commands = lambda incoming, inbox: None  # the main thread is the first to notice

def build(config, report):
    ours.close()
    if sys.argv[1] == "build fails":
        raise ConfigError("no")
    report(StartPhase("load"))

sys.exit(engine_process.run_engine_process(str(theirs.detach()), build, RealClock()))
"""


class Links:
    """Makes process links and remembers them."""

    def __init__(self, model: str = "simulated") -> None:
        self.made: list[ProcessLink] = []
        self.model = model

    def __call__(self) -> EngineLink:
        self.made.append(ProcessLink(COMMAND, named(simulated_config(), self.model)))
        return self.made[-1]

    def kill_last(self) -> None:
        pid = self.made[-1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_killing_the_engine_fails_open_requests_and_a_new_engine_serves_the_next() -> None:
    async def scenario() -> None:
        links = Links()
        client = SupervisedEngineClient(links, RealClock())
        await client.start()
        failed_batches: list[FinishReason] = []
        client.add_listener(lambda batch: failed_batches.extend(e.reason for e in batch.events if hasattr(e, "reason")))
        tasks = [asyncio.create_task(events_of(client, new_request(f"r{i}", max_tokens=LONG))) for i in range(4)]
        while client.status().num_running < 4:
            await asyncio.sleep(0.005)
        links.kill_last()
        for finished in [finish_of(await task) for task in tasks]:
            assert finished.reason is FinishReason.ERROR
            assert "SIGKILL" in (finished.error or "")
        assert failed_batches == [FinishReason.ERROR] * 4
        assert client.status().state == "starting"
        assert "SIGKILL" in (client.status().reason or "")
        with pytest.raises(EngineUnavailableError, match="restarted"):
            await events_of(client, new_request("too-soon"))
        async with asyncio.timeout(100):
            while client.status().state != "ready":
                await asyncio.sleep(0.01)
        assert client.status().num_restarts == 1
        assert is_at_rest(client.status())
        assert client.status().num_total_blocks == client.status().num_free_blocks > 0
        assert finish_of(await events_of(client, new_request("after"))).reason is FinishReason.LENGTH
        await client.close(drain_s=0.0)

    asyncio.run(scenario())


def test_an_engine_that_keeps_dying_is_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_client, "FIRST_BACKOFF_S", 0.01)

    async def scenario() -> None:
        links = Links()
        client = SupervisedEngineClient(links, RealClock())
        await client.start()
        links.model = "mortal"
        links.kill_last()
        async with asyncio.timeout(100):
            while client.status().state != "dead":
                await asyncio.sleep(0.02)
        assert len(links.made) == supervised_client.MAX_QUICK_DEATHS
        assert "ended with code 3" in (client.status().reason or "")
        with pytest.raises(EngineUnavailableError, match="dead"):
            await events_of(client, new_request("a"))
        await client.close(drain_s=0.0)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_process_ends_when_its_parent_dies(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(how)
        parent.wait(100)
        deadline_s = time.monotonic() + 100
        while is_running(pid):
            assert time.monotonic() < deadline_s, "the engine outlived its parent"
            time.sleep(0.02)


def test_a_process_that_ends_at_once_is_reported() -> None:
    async def scenario() -> None:
        link = ProcessLink((sys.executable, "-c", "import sys; sys.exit(7)"), simulated_config())
        client = SupervisedEngineClient(lambda: link, RealClock())
        with pytest.raises(EngineUnavailableError, match="code 7 while starting"):
            await client.start()

    asyncio.run(scenario())


GARBAGE_ENGINE = """
import os, socket, sys, time
connection = socket.socket(fileno=int(sys.argv[1]))
connection.sendall(bytes.fromhex({payload!r}))
time.sleep(60)
"""


@pytest.mark.parametrize(
    "payload",
    [b"\xff\xff\xff\xff", b"\x05\x00\x00\x00hello", b"\x80\x04\x95pickle", b"\x01\x00\x00\x00\xc1"],
    ids=["oversize", "text", "pickle", "invalid"],
)
def test_an_engine_that_talks_garbage_is_ended(payload: bytes) -> None:
    async def scenario() -> None:
        script = GARBAGE_ENGINE.format(payload=(payload + b"\x00" * 64).hex())
        link = ProcessLink((sys.executable, "-c", script), simulated_config())
        client = SupervisedEngineClient(lambda: link, RealClock())
        with pytest.raises(EngineUnavailableError):
            await client.start()
        assert link.pid is not None
        assert not is_running(link.pid)

    asyncio.run(scenario())


@pytest.mark.parametrize("payload", [b"\xff\xff\xff\xff", b"\x05\x00\x00\x00hello", b"GET / HTTP/1.1\r\n\r\n"])
def test_an_engine_process_that_receives_garbage_ends(payload: bytes) -> None:
    child = launch_engine(COMMAND)
    with child.process, child.connection:
        child.connection.sendall(payload)
        child.process.wait(100)


def test_an_engine_process_that_nobody_configures_ends_with_its_parent() -> None:
    child = launch_engine(COMMAND)
    child.connection.close()
    assert child.process.wait(100) == 1


@pytest.mark.parametrize("how", ["build fails", "build goes on"])
def test_an_engine_whose_parent_leaves_while_it_starts_ends_without_a_traceback(how: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", ORPHAN, how], capture_output=True, text=True, timeout=100, check=False
    )
    assert (result.returncode, result.stderr) in ((0, ""), (1, ""))


def test_a_process_launched_before_is_the_first_engine_and_later_ones_are_new() -> None:
    async def scenario() -> None:
        child = launch_engine(COMMAND)
        children = [child]
        client = SupervisedEngineClient(
            lambda: ProcessLink(COMMAND, simulated_config(), children.pop() if children else None), RealClock()
        )
        await client.start()
        await events_of(client, new_request("a"))
        assert child.process.poll() is None
        await client.close(drain_s=0.0)
        assert child.process.poll() is not None

    asyncio.run(scenario())


def test_a_program_that_cannot_be_run_is_reported() -> None:
    with pytest.raises(EngineUnavailableError, match="cannot be started"):
        launch_engine(("/no/such/program",))
