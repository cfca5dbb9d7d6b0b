"""An engine inside this command's process, for `complete` and `chat`."""

from __future__ import annotations

import argparse
from typing import Any

from kvist.api.async_llm import AsyncLLM
from kvist.api.llm import LLM
from kvist.cli.model_source import find_model
from kvist.config.arguments import changed_fields
from kvist.config.load import ENGINE_SECTIONS, load_configs
from kvist.core.sampling_params import SamplingParams


def make_local_llm(arguments: argparse.Namespace) -> AsyncLLM:
    """The engine that the flags describe, not yet started; its model is fetched, with progress, if need be."""
    return AsyncLLM(**_options(arguments))


def start_local_llm(arguments: argparse.Namespace) -> LLM:
    """As `make_local_llm`, started, for programs without asyncio."""
    return LLM(**_options(arguments))


def sampling_for(llm: AsyncLLM, fields: dict[str, Any]) -> SamplingParams:
    """The model's defaults with `fields` over them. Raises InvalidRequestError for values that are not possible."""
    defaults = llm.get_default_sampling_params()
    merged = {name: getattr(defaults, name) for name in defaults.__struct_fields__} | fields
    return SamplingParams(**merged | {"stop": tuple(merged["stop"])})


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    configs = load_configs(arguments, ENGINE_SECTIONS)
    find_model(configs["model"])
    return {field.name: value for field, value in changed_fields(configs)}
