"""A whole server process on a tiny random model: `python -m tests.server.real_server OPTIONS_JSON`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvist.assembly.serve import serve
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.config.server_config import ServerConfig
from kvist.config.trace_config import TraceConfig


@dataclass(frozen=True)
class RealServer:
    url: str
    process_id: int

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all samples of this name with these labels."""
        text = httpx.get(self.url + "/metrics", headers={"authorization": "Bearer first"}).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@contextmanager
def real_server(model: Path, **options: dict[str, object]) -> Iterator[RealServer]:
    """Start, wait until ready, and end it. Options: sections `cache`, `scheduler`, `server`, `trace`."""
    sections = {"model": {"model": str(model), "served_model_name": ["tiny"], "max_model_len": 512}}
    sections |= {"cache": {"num_blocks": 128}, "scheduler": {"max_num_batched_tokens": 64, "check_invariants": True}}
    for name, fields in options.items():
        sections[name] = {**sections.get(name, {}), **fields}
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.real_server", json.dumps(sections)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("kvist serves tiny at http://"), line
        yield RealServer(line.split(" at ")[1].split(" ")[0], process.pid)
        process.terminate()
        assert process.wait(100) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(100)
        process.stdout.close()


def main() -> int:
    sections = json.loads(sys.argv[1])
    config = EngineConfig(
        model=ModelConfig(**{**sections["model"], "served_model_name": tuple(sections["model"]["served_model_name"])}),
        cache=CacheConfig(**sections["cache"]),
        scheduler=SchedulerConfig(**sections["scheduler"]),
        executor=ExecutorConfig(num_threads=1),
        trace=TraceConfig(**sections.get("trace", {})),
    )
    server = ServerConfig(port=0, log_level="warning", **sections.get("server", {}))
    return serve(config, server, print_line=lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())
