"""Metrics as plain values, compared with an independent reader of the exposition."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from kvist.api.metric import read_metrics
from kvist.metrics.prometheus import EngineFacts, render
from kvist.metrics.recorder import MetricsRecorder


def test_samples_are_what_another_reader_sees_whatever_the_model_is_called() -> None:
    recorder, facts = MetricsRecorder(), EngineFacts(model_name='a"b\\c\nd,e="x"} 1')
    families = text_string_to_metric_families(render(recorder, facts, vllm_names=True).decode())
    expected = [(sample.name, dict(sample.labels), sample.value) for family in families for sample in family.samples]
    samples = [(metric.name, dict(metric.labels), metric.value) for metric in read_metrics(recorder, facts)]
    assert samples == expected
    assert len(samples) > 100
