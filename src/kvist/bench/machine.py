"""The facts that every measurement names: which machine, which code, when."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from kvist.core.version import __version__
from kvist.execution.threads import granted_cores

CPU_INFO = Path("/proc/cpuinfo")


def machine_facts() -> dict[str, object]:
    """The processor, the cores this process may use, its widest kernels, and how busy the machine is."""
    return {
        "cpu": cpu_model(),
        "num_cores": os.cpu_count(),
        "num_cores_granted": granted_cores(),
        "isa": widest_isa(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average_1_min": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def cpu_model(cpu_info: Path = CPU_INFO) -> str:
    try:
        for line in cpu_info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def widest_isa() -> str | None:
    """The widest instruction set of the compiled kernels on this processor; None where they are not compiled."""
    try:
        from kvist.execution.native import _native
    except ImportError:
        return None
    return next(iter(_native.isas()), None)


def source_version() -> str:
    """The commit of the checkout that kvist runs from, "+changes" if files differ from it; else kvist's version."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return __version__

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return __version__


def date_now() -> str:
    """UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
