"""The engine's numbers as plain values, under the names that the server exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kvist.metrics.prometheus import EngineFacts, render
from kvist.metrics.recorder import MetricsRecorder


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample; a histogram is several: `_bucket` (by label `le`), `_sum` and `_count`."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_metrics(recorder: MetricsRecorder, facts: EngineFacts) -> list[Metric]:
    """All of kvist's and vLLM's metrics at this moment."""
    text = render(recorder, facts, vllm_names=True).decode()
    return [
        Metric(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
