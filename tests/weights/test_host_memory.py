"""Free memory is what the machine has, or what the tightest limit leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvist.weights.host_memory import free_memory_bytes

KIB = 1024
GIB = 1 << 30


def machine(root: Path, *, available_kib: int, cgroup: str, files: dict[str, str]) -> Path:
    """A fake /proc and /sys under `root`."""
    content = {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available_kib} kB\n",
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_a_limit_it_is_what_the_machine_can_give(tmp_path: Path) -> None:
    root = machine(
        tmp_path, available_kib=1000, cgroup="0::/\n", files={"memory.max": "max\n", "memory.current": "7\n"}
    )
    assert free_memory_bytes(root) == 1000 * KIB


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        available_kib=64 * GIB // KIB,
        cgroup="0::/outer/inner\n",
        files={
            "outer/memory.max": f"{2 * GIB}\n",
            "outer/memory.current": f"{GIB}\n",
            "outer/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
            "outer/inner/memory.max": f"{8 * GIB}\n",
            "outer/inner/memory.current": f"{GIB}\n",
        },
    )
    assert free_memory_bytes(root) == 2 * GIB - GIB + GIB // 2


def test_version_1_groups_are_read_too(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        available_kib=64 * GIB // KIB,
        cgroup="5:cpu,cpuacct:/x\n4:memory:/box\n",
        files={"memory/box/memory.limit_in_bytes": f"{3 * GIB}\n", "memory/box/memory.usage_in_bytes": f"{GIB}\n"},
    )
    assert free_memory_bytes(root) == 2 * GIB


def test_a_container_that_sees_its_group_as_the_root_is_limited(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        available_kib=64 * GIB // KIB,
        cgroup="0::/docker/0123\n",
        files={"memory.max": f"{GIB}\n", "memory.current": f"{2 * GIB}\n"},
    )
    assert free_memory_bytes(root) == 0


def test_this_machine_has_memory() -> None:
    assert free_memory_bytes() > 0


def test_a_limit_on_the_address_space_counts() -> None:
    # In a process of its own, for it must live under the limit.
    program = (
        "import resource\n"
        "from kvist.weights.host_memory import free_memory_bytes\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({GIB}, {GIB}))\n"
        "print(free_memory_bytes())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert 0 < int(ended.stdout) < GIB
