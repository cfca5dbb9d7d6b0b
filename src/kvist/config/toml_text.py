"""Writes configurations as the TOML file that `--config` reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kvist.config.arguments import changed_fields
from kvist.config.fields import Value


def to_toml(configs: Mapping[str, object]) -> str:
    """All options that are not at their defaults; one table for each section."""
    lines: list[str] = []
    section = None
    for field, value in changed_fields(configs):
        if field.section != section:
            section = field.section
            lines.append(f"[{section}]")
        lines.append(f"{field.name} = {toml_literal(value)}")
    return "\n".join(lines) + "\n" if lines else ""


def toml_literal(value: Value) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_literal(part) for part in value) + "]"
    if isinstance(value, str):
        # JSON strings are TOML basic strings, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
