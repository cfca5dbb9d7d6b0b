"""Where downloaded models and built tokenizers are kept."""

from __future__ import annotations

import os
from pathlib import Path

from kvist.core.errors import ConfigError


def cache_folder() -> Path:
    """Return KVIST_CACHE if set, else kvist's part of the user's cache folder. It need not exist yet.

    Raises ConfigError if neither variable says and the user has no home.
    """
    own = os.environ.get("KVIST_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    # A relative XDG_CACHE_HOME is to be ignored, says its specification.
    parent = Path(shared) if shared and Path(shared).is_absolute() else _home() / ".cache"
    return parent / "kvist"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # as in a container that runs under a number that is nobody's
        raise ConfigError("this user has no home folder for the cache; set KVIST_CACHE to a folder") from error
