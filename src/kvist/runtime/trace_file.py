"""A trace on disk that is valid JSON at every moment, however its writer ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvist.core.errors import ConfigError

END = b"\n]\n"  # closes the array; what is written next takes its place


class TraceFile:
    """Takes text that ends with a whole event of a JSON array (metrics.chrome_trace) and keeps the array closed.

    A file that stands at `path` becomes `previous_path(path)`. Raises ConfigError if the file cannot be made, OSError
    from `flush` if the disk does not take what waits: the file then ends with the last event before that.
    """

    def __init__(self, path: Path) -> None:
        self._parts: list[bytes] = []
        self.num_waiting_bytes = 0
        self._position = 0
        try:
            if path.is_file():
                path.replace(previous_path(path))
            elif path.exists():
                raise ConfigError(f"--trace {path} is not a file; name one in a folder that exists")
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"cannot write the trace {path}: {error.strerror}") from error

    @property
    def num_bytes(self) -> int:
        return self._position + self.num_waiting_bytes

    def write(self, text: str) -> None:
        """Keep `text` until the next flush."""
        data = text.encode()
        self._parts.append(data)
        self.num_waiting_bytes += len(data)

    def flush(self) -> None:
        """Pass all that waits on to the system: it survives the end of this process."""
        if not self._parts:
            return
        data = memoryview(b"".join((*self._parts, END)))
        position, num_bytes = self._position, self.num_waiting_bytes
        self._parts.clear()
        self.num_waiting_bytes = 0
        try:
            while data:
                num_written = os.pwrite(self._descriptor, data, position)
                data, position = data[num_written:], position + num_written
        except OSError:
            self._cut_half_written()
            raise
        self._position += num_bytes

    def _cut_half_written(self) -> None:
        """Close the array where it was closed before: there is room for that."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._position)
            if self._position:
                os.pwrite(self._descriptor, END, self._position)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            os.close(self._descriptor)


def previous_path(path: Path) -> Path:
    """Where the older half of a trace stands: out.json -> out.previous.json."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")
