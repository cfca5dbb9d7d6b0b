"""Keeps packed weights on disk, so that a later start maps them instead of packing them again.

Several processes may use one folder at once: files appear whole and vanish whole, and who has mapped one keeps it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kvist.core.errors import CheckpointError
from kvist.execution.native.huge_pages import Bytes
from kvist.execution.native.packed_file import load_packed_file, write_packed_file
from kvist.weights.checkpoint import Checkpoint
from kvist.weights.mapped_files import header_digest

SUFFIX = ".packed"
MIN_BYTES = 4 << 20  # less is packed in a few milliseconds
ABANDONED_S = 86_400.0  # after that a file that was never finished has no writer left

log = logging.getLogger(__name__)


class WeightCache:
    """At most `max_bytes` of packed weights in `folder`; the least recently used file goes first.

    verify: compare checksums with every use. max_copied_bytes: larger ones are mapped, and not read into memory of
    their own. Nothing here fails a start: what cannot be read or written is packed.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        *,
        verify: bool = False,
        min_bytes: int = MIN_BYTES,
        max_copied_bytes: int = 0,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._verify = verify
        self._max_copied_bytes = max_copied_bytes

    def load(self, key: str, sizes: Mapping[str, int]) -> dict[str, Bytes] | None:
        """Load what was kept under `key`: arrays by name, of the bytes that `sizes` says. None if that is not there."""
        path = self._path(key)
        if self._max_bytes == 0:
            return None
        try:
            arrays = load_packed_file(path, key, sizes, verify=self._verify, max_copied_bytes=self._max_copied_bytes)
            os.utime(path)  # marks it as used
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            log.warning("packed weights are made again: %s", error)
            return None
        except OSError as error:
            log.warning("packed weights cannot be read: %s", error)
            return None
        return arrays

    def store(self, key: str, arrays: Mapping[str, Bytes]) -> None:
        """Keep `arrays` under `key` if that is worth its room; others go until all is within `max_bytes`."""
        num_bytes = sum(array.nbytes for array in arrays.values())
        if not self._min_bytes <= num_bytes <= self._max_bytes:
            return
        path = self._path(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(num_bytes, path)
            free_bytes = shutil.disk_usage(self._folder).free
            if free_bytes < 2 * num_bytes:
                log.info("packed weights are not kept: %d bytes are free in %s", free_bytes, self._folder)
                return
            write_packed_file(path, key, arrays)
        except (CheckpointError, OSError) as error:
            log.info("packed weights are not kept: %s", error)  # costs time at the next start, nothing else

    def _make_room(self, num_bytes: int, new: Path) -> None:
        now_s = time.time_ns() / 1e9
        for path in self._folder.glob(f"*{SUFFIX}.*"):  # a writer that was killed left it
            with suppress(OSError):
                if now_s - path.stat().st_mtime > ABANDONED_S:
                    path.unlink()
        kept = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):  # another process may evict it first
                status = path.stat()
                kept.append((status.st_mtime_ns, status.st_size, path))
        total = num_bytes + sum(size for _, size, path in kept if path != new)
        for _, size, path in sorted(kept):
            if total <= self._max_bytes:
                break
            if path != new:
                with suppress(OSError):
                    path.unlink()
                total -= size

    def _path(self, key: str) -> Path:
        return self._folder / f"{key[:32]}{SUFFIX}"


def cache_key(checkpoint: Checkpoint, layout_version: int) -> str:
    """Changes with the checkpoint's files, their headers, and the layout; not with the path."""
    parts = (str(layout_version), header_digest(checkpoint.tensors.values()), *map(str, checkpoint.file_stamps))
    if checkpoint.kind == "hf":
        parts = (*parts, repr(sorted(checkpoint.metadata.items())))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
