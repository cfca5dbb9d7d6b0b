"""A profile as people read it: its coefficients, a table of steps, and a page with plots."""

from __future__ import annotations

from collections import defaultdict

from kvist.costmodel.profile_table import ProfileModel, ProfilePoint, ProfileTable
from kvist.report.line_plots import line_plot
from kvist.report.page import Report

HEADERS = ("sequences", "new tokens", "context", "riders", "measured", "fitted", "off by")


def profile_lines(table: ProfileTable) -> list[str]:
    """The coefficients, and the steps that they explain worst."""
    rows = _rows(table)
    worst = sorted(rows, key=lambda row: -abs(float(row[-1].rstrip("%"))))[:5]
    return [
        f"{table.model}: {len(table.points)} steps; 9 of 10 within {table.error:.1%}; drift {table.drift:+.1%}",
        f"  one token          {1e3 * table.knot_s[0]:.2f} ms; {table.knots[-1]}: {1e3 * table.knot_s[-1]:.1f} ms",
        f"  a sampled row      {1e6 * table.sampled_s:.0f} us",
        f"  1000 keys          {1e6 * table.decode_key_s:.2f} ms decoding, {1e6 * table.prefill_key_s:.2f} in chunks",
        f"  a million pairs    {1e9 * table.prefill_pair_s:.2f} ms",
        f"  host               {1e3 * table.host_s:.2f} ms a step, {1e6 * table.host_sequence_s:.0f} us a sequence, "
        f"{1e6 * table.host_token_s:.2f} us a prompt token",
        "worst explained: " + "; ".join(" ".join(row) for row in worst),
    ]


def profile_page(table: ProfileTable) -> Report:
    page = Report(f"Profile of {table.model}", facts=dict(table.machine))
    page.add_text("\n".join(profile_lines(table)[:-1]))
    decodes: dict[int, list[ProfilePoint]] = defaultdict(list)
    chunks: dict[int, list[ProfilePoint]] = defaultdict(list)
    for point in table.points:
        if point.num_riders == 0 and point.num_new_tokens == 1:
            decodes[point.num_context_tokens].append(point)
        elif point.num_riders == 0 and point.num_sequences == 1:
            chunks[point.num_context_tokens].append(point)
    page.add_plot(
        line_plot(
            "Decoding",
            {
                f"context {context}": [(float(point.num_sequences), 1e3 * point.seconds) for point in points]
                for context, points in sorted(decodes.items())
            },
            x_label="sequences",
            y_label="ms a step",
        )
    )
    page.add_plot(
        line_plot(
            "Chunks of a prompt",
            {
                f"context {context}": [(float(point.num_new_tokens), 1e3 * point.seconds) for point in points]
                for context, points in sorted(chunks.items())
            },
            x_label="tokens",
            y_label="ms a step",
        )
    )
    page.add_table(HEADERS, _rows(table))
    return page


def _rows(table: ProfileTable) -> list[list[str]]:
    model = ProfileModel(table)
    rows = []
    for point in table.points:
        fitted_s = model.executor_s(point.work)
        rows.append(
            [
                str(point.num_sequences),
                str(point.num_new_tokens),
                str(point.num_context_tokens),
                str(point.num_riders),
                f"{1e3 * point.seconds:.2f}",
                f"{1e3 * fitted_s:.2f}",
                f"{100 * (fitted_s / point.seconds - 1):+.1f}%",
            ]
        )
    return rows
