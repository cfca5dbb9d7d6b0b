"""Whatever stands in a load file, it is a load that can be drawn or an error with a message."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvist.config.toml_text import toml_literal
from kvist.core.errors import ConfigError
from kvist.workload.load_file import parse_load_file

KEYS = (
    "num_requests", "num_sessions", "turns", "steps", "roots", "depth", "branching", "arrival", "input", "output",
    "mix", "documents", "shared_prefix", "think_time_s", "fork_share", "n", "about", "temperature", "like", "zipf",
    "count", "per_request", "length", "fixed", "uniform", "choice", "lognormal", "mean", "median", "min", "max",
    "rate", "gamma", "cv", "poisson", "on_off", "on_s", "off_s", "drift", "from", "to", "segments", "seconds",
    "share", "exponential_mean", "kv_cache_tokens_fraction", "surprise",
)  # fmt: skip
SCALARS = st.sampled_from(
    [-1, 0, 1, 2, 5, 10**18, 0.5, -0.5, 1e-300, 1e308, True, False, "", "all_at_once", "a", "x"]
) | st.integers(1, 9)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=6,
)
LENGTHS = st.sampled_from(
    [{"fixed": 3}, {"uniform": [1, 4]}, {"lognormal": {"mean": 9, "median": 8, "min": 1, "max": 20}}]
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "num_requests": st.integers(1, 5),
    "num_sessions": st.integers(1, 3),
    "arrival": st.sampled_from(["all_at_once", {"poisson": True, "rate": 0.5}, {"gamma": {"cv": 2.0}, "rate": 1.0}]),
    "input": LENGTHS,
    "output": LENGTHS,
}


def inline(value: Any) -> str:  # Any: what TOML holds
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return toml_literal(value)


@st.composite
def load_files(draw: st.DrawFn) -> str:
    """A load that makes sense but for some keys; or something in the place of a whole section."""
    load = {key: draw(strategy) for key, strategy in GOOD.items()}
    load |= draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
    for key in draw(st.sets(st.sampled_from(sorted(load)), max_size=1)):
        del load[key]
    document: dict[str, Any] = {"loads": {"a": load}}
    document |= draw(st.dictionaries(st.sampled_from(["loads", "slo", "defaults", "odd"]), VALUES, max_size=1))
    return "\n".join(f"{key} = {inline(value)}" for key, value in document.items())


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(load_files())
def test_a_load_file_is_read_or_refused_with_a_message(text: str) -> None:
    with suppress(ConfigError):
        parse_load_file(text, "mine.toml")
