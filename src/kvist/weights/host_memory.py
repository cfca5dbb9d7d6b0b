"""How much memory this machine, or the control group this process is confined to, can still give."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def free_memory_bytes(root: Path = _ROOT) -> int:
    """Bytes that can be used without swapping: the machine's, or what the tightest limit on us leaves.

    Limits are those of the cgroups above us and that on this process's address space (ulimit -v).
    """
    free = [_mem_available_bytes(root), *_free_address_space(root)]
    for folder in _cgroup_folders(root, "memory"):
        for limit_file, usage_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _read_number(folder / limit_file)
            usage = _read_number(folder / usage_file)
            if limit is not None and usage is not None:
                # Cached file pages count as used, but the kernel drops them when memory is needed.
                reclaimable = _stat_number(folder / "memory.stat", "inactive_file")
                free.append(max(0, limit - usage + reclaimable))
    return min(free)


def _free_address_space(root: Path) -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        lines = _read_lines(root / "proc/self/statm")
        used_pages = int(lines[0].split()[0]) if lines else 0
        yield max(0, limit - used_pages * resource.getpagesize())


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of all groups above it, in cgroup version 2 and 1."""
    mount = root / "sys/fs/cgroup"
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = mount
        elif controller in controllers.split(","):
            base = mount / controller
        else:
            continue
        folder = base / path.lstrip("/")
        while True:
            yield folder  # inside a container the path may not exist; its group is then mounted at the base
            if folder == base:
                break
            folder = folder.parent


def _mem_available_bytes(root: Path) -> int:
    for line in _read_lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def _read_number(path: Path) -> int | None:
    """The number in the file; None if there is no such file or it says "max"."""
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _stat_number(path: Path, name: str) -> int:
    for line in _read_lines(path):
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
