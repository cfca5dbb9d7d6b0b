"""Sampling options that a model file recommends.

The order in which an option is looked up: the request, then these (unless `generation_config` is "off"), then
SamplingParams' own defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvist.core.errors import CheckpointError, InvalidRequestError
from kvist.core.sampling_params import SamplingParams
from kvist.weights.checkpoint import Checkpoint

_HUGGING_FACE_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
_GGUF_NAMES = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def read_sampling_defaults(checkpoint: Checkpoint) -> dict[str, float | int]:
    """SamplingParams field -> recommended value, for those the model file names. Raises CheckpointError on bad ones."""
    found: Mapping[str, Any]  # Any: values as the file has them, checked below
    if checkpoint.kind == "gguf":
        source, names, found = "the GGUF metadata", _GGUF_NAMES, checkpoint.metadata
    else:
        source, names = "generation_config.json", _HUGGING_FACE_NAMES
        found = checkpoint.side_json("generation_config.json") or {}
    defaults: dict[str, float | int] = {}
    for name, field in names.items():
        value = found.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad_default(source, f"{name} must be a number, not {value!r}")
        defaults[field] = int(value) if field == "top_k" else float(value)
    if defaults.get("top_k", 0) == -1:
        defaults["top_k"] = 0  # both mean "off"
    try:
        SamplingParams(**defaults)  # type: ignore[arg-type]  # names and kinds are those of the table above
    except InvalidRequestError as error:
        raise _bad_default(source, str(error)) from error
    return defaults


def _bad_default(source: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{source} recommends sampling that is not possible: {problem}. Use --generation-config off."
    )
