"""kvist serves large language models. `from kvist import LLM, AsyncLLM, SamplingParams, RequestOutput`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kvist.core.version import __version__

if TYPE_CHECKING:
    from kvist.api.async_llm import AsyncLLM
    from kvist.api.llm import LLM
    from kvist.api.outputs import CompletionOutput, RequestOutput
    from kvist.core.sampling_params import SamplingParams

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "kvist.api.llm",
    "AsyncLLM": "kvist.api.async_llm",
    "CompletionOutput": "kvist.api.outputs",
    "RequestOutput": "kvist.api.outputs",
    "SamplingParams": "kvist.core.sampling_params",
}


def __getattr__(name: str) -> object:
    """Import public names on first use: `import kvist` alone, as the command line does, stays cheap."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kvist' has no attribute {name!r}")
