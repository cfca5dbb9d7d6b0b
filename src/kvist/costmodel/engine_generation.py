"""Which engines share a way of running a step: efficiency belongs to a device and such a generation."""

from __future__ import annotations

import re

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
    (r"vllm v?0\.[0-3]\.", "vllm-early-2024"),
    (r"vllm v?0\.[4-7]\.", "vllm-2024"),
    (r"vllm v?0\.1[0-4]", "vllm-0.12"),
    (r"vllm v?0\.1[5-9]", "vllm-0.15"),
    (r"vllm", CURRENT),
)


def engine_generation(framework: str) -> str:
    """The generation that a framework and version belong to; today's where it is not known."""
    name = framework.lower()
    return next((generation for pattern, generation in _PATTERNS if re.search(pattern, name)), CURRENT)


def is_modern(generation: str) -> bool:
    """Whether engines of the generation launch their steps as graphs, so that the host hardly sets the pace."""
    return generation.endswith(("2025", "0.12", "0.15"))
