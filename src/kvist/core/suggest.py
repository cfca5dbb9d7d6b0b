"""Finds the known name that a misspelt one was meant to be, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None if none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the nearest known name, or '' if none is close. To be appended to a sentence."""
    match = nearest(name, known)
    return f" Did you mean {match}?" if match else ""
