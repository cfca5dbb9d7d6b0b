"""Collects the figures of all engines, repeat by repeat, and why some have none."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

from benchmarks.peers import online
from benchmarks.peers.engine import Engine, EngineFailedError
from benchmarks.peers.peers import KVIST, Peer, Settings, log_path
from benchmarks.peers.report import Figures
from benchmarks.peers.server import Server
from benchmarks.peers.works import Work, text_tokens
from kvist.workload.text_source import TextSource

WARM_UP = Work(
    name="warm_up", num_prompt_tokens=64, num_output_tokens=8, unit="s", figure=lambda work, seconds: seconds
)
MEMORY_WORK = "fixed_32"  # done first, so that no other work's memory is in its peak, taken after the first repeat
REST_S = 0.5  # for threads that spin a while after their work


class Comparison:
    """figures: of each engine's name and work, one a repeat. failures: engines left out since, and why."""

    def __init__(self, peers: Sequence[Peer], settings: Settings, source: TextSource) -> None:
        self.figures: Figures = defaultdict(list)
        self.versions: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self._peers = peers
        self._settings = settings
        self._source = source

    def measure_works(self, works: Sequence[Work], num_repeats: int, save: Callable[[], object]) -> None:
        """Load all engines and warm them up; then give each work to all in turn, to another first each time.

        save: called after every repeat.
        """
        with ExitStack() as loaded:
            engines: dict[str, Engine] = {}
            for peer in self._working(0):
                with self._failing(peer):
                    engine = engines[peer.name] = peer.open(self._settings)
                    loaded.callback(engine.close)
                    self.versions[peer.name] = engine.version
                    engine.run(WARM_UP, self._source, 0)
            for repeat in range(num_repeats):
                for work in sorted(works, key=lambda work: work.name != MEMORY_WORK):
                    for peer in self._working(repeat):
                        with self._failing(peer):
                            self._work(peer, engines[peer.name], work, repeat)
                save()

    def repeat_start(self, repeat: int) -> None:
        """Time each server from its start to the first streamed byte."""
        prompt = text_tokens(self._source, f"start/{repeat}", 32)
        for peer in self._with_server(repeat, None):
            with self._failing(peer), self._server(peer) as server:
                self._add(peer, "start_s", server.seconds_to_first_byte(prompt))

    def online_capacity_per_s(self, baseline: str) -> float | None:
        """Requests per second that the engine named `baseline` completes when all come at once."""
        for peer in self._with_server(0, (baseline,)):
            with self._failing(peer), self._server(peer) as server:
                server.seconds_to_first_byte(text_tokens(self._source, "capacity", 32))
                return online.capacity_per_s(server, self._settings.model)
        return None

    def repeat_online(self, names: Sequence[str], capacity_per_s: float, repeat: int) -> None:
        """Send the same requests at the same times to the servers named, one server after the other."""
        for peer in self._with_server(repeat, names):
            with self._failing(peer), self._server(peer) as server:
                server.seconds_to_first_byte(text_tokens(self._source, f"online/{repeat}", 32))
                figures = online.send(server, self._settings.model, capacity_per_s, repeat)
                for what, value in asdict(figures).items():
                    self._add(peer, f"online_{what}", value)

    def _working(self, repeat: int) -> list[Peer]:
        peers = [peer for peer in self._peers if peer.name not in self.failures]
        first = repeat % len(peers)
        return peers[first:] + peers[:first]

    def _with_server(self, repeat: int, names: Sequence[str] | None) -> list[Peer]:
        """Peers that serve, of those named; None: of all."""
        return [p for p in self._working(repeat) if p.server is not None and (names is None or p.name in names)]

    def _server(self, peer: Peer) -> Server:
        assert peer.server is not None
        command = peer.server(self._settings)
        return Server(command.words, command.environment, log_path(f"{peer.name} server"))

    def _work(self, peer: Peer, engine: Engine, work: Work, repeat: int) -> None:
        time.sleep(REST_S)
        self._add(peer, work.name, work.figure(work, engine.run(work, self._source, repeat)))
        if work.name == MEMORY_WORK and repeat == 0:
            self._add(peer, "peak_mib", engine.peak_bytes() / 2**20)

    def _add(self, peer: Peer, what: str, value: float) -> None:
        self.figures[peer.name, what].append(value)
        print(f"{peer.name}: {what} {value:.4g}", flush=True)

    @contextmanager
    def _failing(self, peer: Peer) -> Iterator[None]:
        """Leave a peer that fails out of the rest and say why in its row. A failure of kvist's ends the run."""
        try:
            yield
        except (EngineFailedError, OSError, subprocess.CalledProcessError) as error:
            if peer.engine == KVIST.engine:
                raise
            self.failures[peer.name] = str(error)
            print(f"{peer.name} failed: {error}", file=sys.stderr, flush=True)
