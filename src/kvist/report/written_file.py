"""Writes a result so that it is there as a whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvist.core.errors import KvistError


def write_whole(path: Path, text: str) -> None:
    """Put `text` into `path`, in place of what was there. An interrupted or failing write leaves that as it was.

    What is no regular file (a pipe, /dev/stdout) is written to directly. Raises KvistError if it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()  # a link stays one
        partial = target.with_name(f".{os.getpid()}.partial")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        finally:
            with suppress(OSError):  # after the last line it is no longer there
                partial.unlink()
    except OSError as error:
        raise KvistError(f"cannot write {path}: {error.strerror or error}") from error
