"""How a comparison of policies looks: in the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvist.core.errors import ConfigError
from kvist.report.page import page_facts

if TYPE_CHECKING:
    from kvist.bench.policy_comparison import PolicyComparison
    from kvist.report import Report

_COLUMNS = (
    ("request_goodput", "goodput, req/s", "{:.3f}"),
    ("slo_attainment", "attainment", "{:.1%}"),
    ("output_throughput", "output tok/s", "{:.1f}"),
    ("median_ttft_ms", "TTFT p50, ms", "{:.0f}"),
    ("p99_ttft_ms", "p99", "{:.0f}"),
    ("median_tpot_ms", "TPOT p50, ms", "{:.1f}"),
    ("p99_tpot_ms", "p99", "{:.1f}"),
    ("p99_itl_ms", "ITL p99, ms", "{:.1f}"),
)

Document = Mapping[str, Any]  # Any: what JSON holds


class _Figure(msgspec.Struct):
    """Over the repeats."""

    median: float
    min: float
    max: float


class _Head(msgspec.Struct):
    """What a table says of all rows; the figures of each stand under the names in _COLUMNS."""

    load: str
    is_virtual: bool
    repeats: int
    capacity_per_s: float
    equal_outputs: bool
    rows: Sequence[Mapping[str, Any]]


class _Name(msgspec.Struct):
    policy: str
    token_budget: int


def check_policy_document(document: Document) -> None:
    """Raise ConfigError if this is no comparison that a table can be made of."""
    try:
        for row in msgspec.convert(document, _Head).rows:
            msgspec.convert(row, _Name)
            for name, _, _ in _COLUMNS:
                msgspec.convert(row.get(name), _Figure | None)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this is no result of this version's kvist bench policies: {error}") from error


def policy_lines(document: Document) -> Iterator[str]:
    """A table with a line per policy and budget: medians, and below each the least and the most of its repeats."""
    kind = "virtual time" if document["is_virtual"] else "real time"
    yield (
        f"{document['load']}: {document['repeats']} repeats in {kind}; capacity {document['capacity_per_s']:.3f} "
        "requests/s"
    )
    yield ""
    widths = [max(len(label), 13) for _, label, _ in _COLUMNS]
    labels = "  ".join(f"{label:>{width}}" for (_, label, _), width in zip(_COLUMNS, widths, strict=True))
    yield f"{'policy':<22}{labels}"
    for row in document["rows"]:
        name = f"{row['policy']} {row['token_budget']}"
        yield f"{name:<22}" + "  ".join(_cells(row, widths, "median"))
        if document["repeats"] > 1:
            yield f"{'':<22}" + "  ".join(_cells(row, widths, "spread"))
    yield ""
    yield "All gave the same tokens." if document["equal_outputs"] else "OUTPUTS DIFFER: that is a fault of kvist."


def _cells(row: Document, widths: list[int], what: str) -> Iterator[str]:
    for (name, _, form), width in zip(_COLUMNS, widths, strict=True):
        value = row[name]
        if value is None:
            text = "-"
        elif what == "median":
            text = form.format(value["median"])
        else:
            text = f"{form.format(value['min'])}..{form.format(value['max'])}"
        yield f"{text:>{width}}"


def write_policy_report(path: Path, document: Document, comparison: PolicyComparison) -> None:
    """A page with the table, goodput and attainment as bars, and the distributions of the latencies."""
    # Here, because only this needs the library for plots.
    from kvist.report import Report, cdf_plot

    facts = page_facts(document)
    facts["machine"] = str(document["machine"]["cpu"])
    report = Report(f"Policies on {document['load']}", facts=facts)
    add_policy_table(report, document)
    gaps = {runs.variant.label: runs.inter_token_ms for runs in comparison.runs}
    report.add_plot(cdf_plot("Time between tokens", gaps, x_label="ms", log=True))
    ttfts = {runs.variant.label: runs.ttft_ms for runs in comparison.runs}
    report.add_plot(cdf_plot("Time to first token", ttfts, x_label="ms", log=True))
    report.write(path)


def add_policy_table(report: Report, document: Document) -> None:
    """The table of a stored comparison, and its main figures as bars."""
    from kvist.report import bar_plot

    report.add_text("\n\n".join(line for line in (next(policy_lines(document)), _note(document)) if line))
    report.add_table(
        ["policy", "token budget", *(label for _, label, _ in _COLUMNS)],
        [
            [
                row["policy"],
                row["token_budget"],
                *(None if row[name] is None else form.format(row[name]["median"]) for name, _, form in _COLUMNS),
            ]
            for row in document["rows"]
        ],
    )
    labels = [f"{row['policy']} {row['token_budget']}" for row in document["rows"]]
    for name, title, unit in (
        ("request_goodput", "Goodput", "requests per second that met their targets"),
        ("slo_attainment", "SLO attainment", "share of requests that met their targets"),
        ("output_throughput", "Throughput", "output tokens per second"),
    ):
        values = [None if row[name] is None else row[name]["median"] for row in document["rows"]]
        report.add_plot(bar_plot(title, labels, {"median": values}, y_label=unit))


def _note(document: Document) -> str:
    return "" if document["equal_outputs"] else "The policies gave different tokens: that is a fault of kvist."
