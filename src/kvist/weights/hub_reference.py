"""How a user names a model of the Hugging Face Hub, and the note of what was fetched for it.

Apart from the fetching, because the hub's client takes most of a second to import.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from kvist.core.errors import CheckpointError
from kvist.weights.atomic_file import write_atomically
from kvist.weights.checkpoint import MAX_JSON_BYTES
from kvist.weights.safetensors_reader import read_json_file

_REFERENCE = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?::(?P<quant>[\w.-]+)|/(?P<file>[\w./-]+\.gguf))?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReference:
    """`org/repo`, `org/repo:Q4_K_M` or `org/repo/file.gguf`, at a revision (None: the default branch)."""

    repo_id: str
    quant: str | None
    file: str | None
    revision: str | None

    def __str__(self) -> str:
        chosen = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        return f"{self.repo_id}{chosen}" + (f" at {self.revision}" if self.revision else "")


def parse_hub_reference(text: str, revision: str | None) -> HubReference | None:
    """Return what `text` refers to, or None if it is no Hugging Face id."""
    match = _REFERENCE.fullmatch(text)
    if match is None or ".." in text:
        return None
    return HubReference(repo_id=match["repo"], quant=match["quant"], file=match["file"], revision=revision)


def noted_download(reference: HubReference, cache: Path) -> Path | None:
    """Return where an earlier, complete download lies, if all of it is still there."""
    note_path = _note_path(reference, cache)
    return _whole_download(note_path) if note_path.is_file() else None


def _whole_download(note_path: Path) -> Path | None:
    try:
        note = read_json_file(note_path, MAX_JSON_BYTES)
        folder, files = Path(note["folder"]), note["files"]
        complete = all((folder / file).is_file() for file in files)
        return folder / note["model"] if complete else None
    except (CheckpointError, KeyError, TypeError):  # a damaged note: fetch again
        return None


def noted_downloads(cache: Path) -> dict[str, Path]:
    """Return what was fetched from the hub and is still there: reference as text -> path to open."""
    found = {}
    for note_path in sorted((cache / "hub").glob("*.json")):
        path = _whole_download(note_path)
        if path is not None:
            found[unquote(note_path.stem)] = path
    return found


def note_download(reference: HubReference, cache: Path, folder: Path, model: str, files: list[str]) -> None:
    """Note that `files` in `folder` are all that `reference` needs. model: the one to open, "" for the folder."""
    with write_atomically(_note_path(reference, cache)) as note:
        note.write(json.dumps({"folder": str(folder), "model": model, "files": files}).encode())


def _note_path(reference: HubReference, cache: Path) -> Path:
    return cache / "hub" / f"{quote(str(reference), safe='')}.json"
