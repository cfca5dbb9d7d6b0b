"""Which engines share a way of running a step: efficiency belongs to a device and such a generation."""

from __future__ import annotations

import re

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean

CURRENT = "vllm-2025"  # what an engine of today does, where none is named

# The first pattern that a framework's name contains decides.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"vidur", "vidur-kernels"),
    (r"aiconfigurator", "operators-2025"),
    (r"swifttransformer", "swifttransformer"),
    (r"distserve", "vllm-2023"),
    (r"sarathi", "sarathi-2024"),
    (r"turbomind", "turbomind-2023"),
    (r"early-2024|splitwise", "vllm-early-2024"),
    (r"late 2024", "vllm-2024"),
    (r"tensorrt-llm v0\.|trtllm 0\.", "trtllm-2023"),
    (r"nim|trtllm|tensorrt", "trtllm-2025"),
    (r"sglang", "sglang-2025"),
    (r"vllm[ -]v?0\.[0-3]\b", "vllm-early-2024"),
    (r"vllm[ -]v?0\.[4-7]\b", "vllm-2024"),
    (r"vllm[ -]v?0\.1[0-4]", "vllm-0.12"),
    (r"vllm[ -]v?0\.(1[5-9]|[2-9]\d)", "vllm-0.15"),
    (r"vllm", CURRENT),
)


GENERATIONS = tuple(dict.fromkeys(generation for _, generation in _PATTERNS))


def engine_generation(framework: str) -> str:
    """The generation that a framework and version belong to; today's where it is not known."""
    return _known_generation(framework) or CURRENT


def find_generation(framework: str) -> str:
    """As `engine_generation`, for what a user asks for. Raises ConfigError for an engine that is not known."""
    found = _known_generation(framework)
    if found is None:
        raise ConfigError(
            f"engine {framework!r} is not known; write an engine and its version, such as 'vLLM 0.15.1', or one of "
            f"{', '.join(GENERATIONS)}.{did_you_mean(framework.lower(), GENERATIONS)}"
        )
    return found


def _known_generation(framework: str) -> str | None:
    name = framework.strip().lower()
    if name in GENERATIONS:
        return name
    return next((generation for pattern, generation in _PATTERNS if re.search(pattern, name)), None)


def is_modern(generation: str) -> bool:
    """Whether engines of the generation launch their steps as graphs, so that the host hardly sets the pace."""
    return generation.endswith(("2025", "0.12", "0.15"))
