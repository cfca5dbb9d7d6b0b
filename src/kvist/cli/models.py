"""List the models that kvist knows by name, and those that were fetched before."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kvist.cli.units import format_bytes
from kvist.config.cache_folder import cache_folder
from kvist.config.model_config import DEFAULT_MODEL
from kvist.weights.catalogue import CATALOGUE
from kvist.weights.fetch import cached_entry
from kvist.weights.hub_reference import noted_downloads


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """path None: not fetched yet; `num_bytes` is then what the download takes, roughly."""

    name: str
    summary: str
    licence: str | None
    num_bytes: int
    path: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the form of the answer."""
    parser.add_argument("--json", action="store_true", help="one JSON array, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    models = list_models(cache_folder())
    if arguments.json:
        print(json.dumps([asdict(model) for model in models], indent=2))
        return 0
    width = max(len(model.name) for model in models)
    for model in models:
        place = model.path or f"not fetched: kvist pull {model.name}"
        print(f"{model.name:<{width}}  {format_bytes(model.num_bytes):>9}  {model.summary}; {place}")
    print(f"\nThe default is {DEFAULT_MODEL}. Any .gguf file, checkpoint folder or Hugging Face id works too.")
    return 0


def list_models(cache: Path) -> list[ListedModel]:
    """The catalogue, then what came from the hub."""
    models = []
    for entry in CATALOGUE.values():
        path = cached_entry(entry, cache)
        models.append(
            ListedModel(
                name=entry.name,
                summary=f"{entry.summary}, {entry.licence}",
                licence=entry.licence,
                num_bytes=_size(path) if path else entry.download_bytes,
                path=str(path) if path else None,
            )
        )
    for name, path in noted_downloads(cache).items():
        models.append(
            ListedModel(name=name, summary="from Hugging Face", licence=None, num_bytes=_size(path), path=str(path))
        )
    return models


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
