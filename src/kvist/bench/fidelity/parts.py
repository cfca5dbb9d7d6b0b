"""Parts of a long measurement, kept in a file as they finish, so that it can be done in several calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvist.core.errors import ConfigError
from kvist.weights.atomic_file import write_atomically

Document = dict[str, Any]  # Any: what JSON holds


class _File(msgspec.Struct):
    """setup: what all parts have in common."""

    setup: Document
    parts: dict[str, Document]


class Parts:
    """Finished parts by name. file: where they are kept; None: nowhere."""

    def __init__(self, file: Path | None, setup: Mapping[str, Any]) -> None:
        """Raises ConfigError if the file holds parts of another set-up, or anything else."""
        self._file = file
        self._kept = _File(dict(setup), {})
        if file is not None and file.exists():
            try:
                self._kept = msgspec.json.decode(file.read_bytes(), type=_File)
            except (OSError, msgspec.MsgspecError) as error:
                raise ConfigError(f"--parts {file} holds no parts of a measurement: {error}") from error
            self._check(file, setup)

    def _check(self, file: Path, setup: Mapping[str, Any]) -> None:
        asked = json.loads(json.dumps(setup))  # as a file gives it back
        for name in asked.keys() | self._kept.setup.keys():
            kept, now = self._kept.setup.get(name), asked.get(name)
            if kept != now:
                raise ConfigError(
                    f"--parts {file} holds parts with {name} {kept}, and this call asks for {now}. "
                    "Repeat the same call, or name another file"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._kept.parts

    def __getitem__(self, name: str) -> Document:
        return self._kept.parts[name]

    def add(self, name: str, part: Document) -> None:
        self._kept.parts[name] = part
        if self._file is not None:
            with write_atomically(self._file) as file:
                file.write(msgspec.json.encode(self._kept))
