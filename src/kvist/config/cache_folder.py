"""Where downloaded models and built tokenizers are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return KVIST_CACHE if set, else kvist's part of the user's cache folder. It need not exist yet."""
    own = os.environ.get("KVIST_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    # A relative XDG_CACHE_HOME is to be ignored, says its specification.
    parent = Path(shared) if shared and Path(shared).is_absolute() else Path.home() / ".cache"
    return parent / "kvist"
