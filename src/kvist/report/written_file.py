"""Writes a result so that it is there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from kvist.core.errors import KvistError


def write_whole(path: Path, text: str) -> None:
    """Put `text` into `path`, in place of what was there. An interrupted or failing write leaves that as it was.

    What is no regular file (a pipe, /dev/stdout) is written to directly. Raises KvistError if it cannot be written.
    """
    with whole_file(path) as file:
        file.write(text)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """The same for a text that is written piece by piece: it is in place when the block ends without an exception."""
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as file:
                yield file
            return
        target = path.resolve()  # a link stays one
        partial = target.with_name(f".{os.getpid()}.partial")
        try:
            with partial.open("w", encoding="utf-8") as file:
                yield file
            partial.replace(target)
        finally:
            with suppress(OSError):  # after the last line it is no longer there
                partial.unlink()
    except OSError as error:
        raise KvistError(f"cannot write {path}: {error.strerror or error}") from error
