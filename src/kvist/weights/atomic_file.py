"""Writes a file so that other processes see all of it or nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kvist.core.errors import CheckpointError


@contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` when the block ends well, and vanishes when it raises.

    Creates the folder if needed. Raises CheckpointError if the place cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):  # it may never have been there
            partial.unlink()
