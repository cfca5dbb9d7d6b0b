"""Writes metric families in Prometheus' text format (version 0.0.4). Knows no metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvist.metrics.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


class PrometheusText:
    """Collects families; `labels` stand on every sample but those of `info`."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._lines: list[str] = []

    def counter(self, name: str, text: str, value: float) -> None:
        self.counter_by(name, text, [({}, value)])

    def counter_by(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> None:
        """A counter split by further labels. `_total` is added to the name."""
        self._family(name + "_total", "counter", text)
        for labels, value in values:
            self._sample(name + "_total", {**self._labels, **labels}, value)

    def gauge(self, name: str, text: str, value: float) -> None:
        self.gauge_by(name, text, [({}, value)])

    def gauge_by(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> None:
        self._family(name, "gauge", text)
        for labels, value in values:
            self._sample(name, {**self._labels, **labels}, value)

    def info(self, name: str, text: str, labels: Labels) -> None:
        """A gauge that is always 1 and says what it has to say in its labels."""
        self._family(name, "gauge", text)
        self._sample(name, labels, 1)

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        self._family(name, "histogram", text)
        labels = _label_text(self._labels)
        buckets = histogram.cumulative()
        self._lines += [f'{name}_bucket{{{labels},le="{bound}"}} {count}' for bound, count in buckets]
        self._lines.append(f"{name}_count{{{labels}}} {buckets[-1][1]}")
        self._lines.append(f"{name}_sum{{{labels}}} {histogram.total!r}")

    def encode(self) -> bytes:
        return "\n".join([*self._lines, ""]).encode()

    def _family(self, name: str, kind: str, text: str) -> None:
        self._lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}")

    def _sample(self, name: str, labels: Labels, value: float) -> None:
        self._lines.append(f"{name}{{{_label_text(labels)}}} {value!r}")


def _label_text(labels: Labels) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
