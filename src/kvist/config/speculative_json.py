"""Speculation as one object, in vLLM's spelling, translated into the options of the speculation section."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kvist.config.fields import Value, config_fields
from kvist.config.speculation_config import SpeculationConfig
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean

_SHORT_NAMES = {"method": "speculative_method", "model": "speculative_model", "adaptive": "speculative_adaptive"}
_LOOK_UP_MODEL = "[ngram]"  # an older way to say method: ngram


def parse_speculation(text: str, *, source: str) -> dict[str, Value]:
    """Option name -> value of a JSON object. `source` opens the messages of the ConfigErrors raised."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} must be a JSON object: {error}") from error
    return speculation_values(given, source=source)


def speculation_values(given: Any, *, source: str) -> dict[str, Value]:  # Any: a program may pass anything
    """Option name -> checked value. Raises ConfigError for unknown names, naming the nearest, and for bad values."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source} must be an object such as {{'method': 'ngram'}}, not {given!r}")
    fields = {field.name: field for field in config_fields(SpeculationConfig, "speculation")}
    values: dict[str, Value] = {}
    for key, value in given.items():
        name = _SHORT_NAMES.get(str(key), str(key))
        if name not in fields:
            raise ConfigError(f"{source} has no option {key!r}.{did_you_mean(str(key), (*_SHORT_NAMES, *fields))}")
        values[name] = fields[name].check(value, label=f"{source} {key}")
    if values.get("speculative_model") == _LOOK_UP_MODEL:
        values["speculative_model"], values["speculative_method"] = None, "ngram"
    return values
