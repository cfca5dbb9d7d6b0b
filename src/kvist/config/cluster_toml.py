"""Writes a cluster as the file that `read_cluster_file` reads back."""

from __future__ import annotations

import dataclasses

from kvist.config.cluster_config import ClusterConfig
from kvist.config.toml_text import toml_literal


def cluster_toml(config: ClusterConfig, *, profile: str | None = None) -> str:
    """All that is not at its default. `check_invariants` is no part of the file. profile: the file of step times."""
    lines: list[str] = []
    for group in config.groups:
        lines += _table("[[replicas]]", group, always=("name",))
    for name in ("cache", "links", "router"):
        lines += _table(f"[{name}]", getattr(config, name))
    for failure in config.failures:
        lines += _table("[[failures]]", failure, always=("replica",))
    if profile is not None:
        lines += ["[step_time]", f"profile = {toml_literal(profile)}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(header: str, values: object, *, always: tuple[str, ...] = ()) -> list[str]:
    assert dataclasses.is_dataclass(values)
    lines = [
        f"{field.name} = {toml_literal(value)}"
        for field in dataclasses.fields(values)
        if (value := getattr(values, field.name)) != field.default or field.name in always
    ]
    return [header, *lines, ""] if lines else []
