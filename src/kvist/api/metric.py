"""The engine's numbers as plain values, under the names that the server exports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvist.metrics.prometheus import EngineFacts, render
from kvist.metrics.recorder import MetricsRecorder

# One line of the exposition that `render` writes: name{label="value",...} value
_SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample; a histogram is several: `_bucket` (by label `le`), `_sum` and `_count`."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_metrics(recorder: MetricsRecorder, facts: EngineFacts) -> list[Metric]:
    """All of kvist's and vLLM's metrics at this moment."""
    text = render(recorder, facts, vllm_names=True).decode()
    samples = (_SAMPLE.fullmatch(line) for line in text.splitlines())
    return [
        Metric(
            sample["name"],
            {name: _unescape(value) for name, value in _LABEL.findall(sample["labels"] or "")},
            float(sample["value"]),
        )
        for sample in samples
        if sample is not None  # a comment
    ]


def _unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)
