"""Write what plans and their servers did, and what a plan costs, into docs/planning.md. With --check: only check it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generated_region import write_or_check

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "planning.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- planned: made by scripts/plan_page.py -->\n", "<!-- /planned -->\n"
ROWS = {
    "slo_attainment": ("requests that keep both targets", "{:.0%}"),
    "request_goodput": ("goodput, requests/s", "{:.2f}"),
    "output_throughput": ("output tokens/s", "{:.0f}"),
    "median_ttft_ms": ("TTFT P50, ms", "{:,.0f}"),
    "p90_ttft_ms": ("TTFT P90, ms", "{:,.0f}"),
    "mean_tpot_ms": ("TPOT mean, ms", "{:.1f}"),
    "p90_tpot_ms": ("TPOT P90, ms", "{:.1f}"),
    "cache_hit_share": ("prompt tokens from the cache", "{:.1%}"),
}
SETUPS = {
    "planned": "the plan, at its rate",
    "overload": "the plan, at 1.5 times its rate",
    "default": "without options, at the plan's rate",
}
Document = dict[str, Any]  # Any: what JSON holds


def content() -> str:
    """Of the stored results; nothing where there are none."""
    served, speed = _stored("plan_on_cpu"), _stored("plan_speed")
    lines = [""]
    for load, found in {} if served is None else {k: v for k, v in served["results"].items() if "summary" in v}.items():
        rate, line = found["plan"]["winner"]["rate"], found["plan"]["commands"]["serve"]["mixed"]
        lines += [
            f"`{load}`, {found['slo']}: `{line}` at {rate:.2f} requests/s.",
            "",
            "| | | measured | least to most | predicted |",
            "| --- | --- | --- | --- | --- |",
        ]
        for setup, label in SETUPS.items():
            summary = found["summary"].get(setup, {})
            repeats = found["repeats"].get(setup, 0)
            for number, (name, (what, form)) in enumerate(ROWS.items() if summary else ()):
                row = summary[name]
                spread = f"{form.format(row['least'])} to {form.format(row['most'])}" if repeats > 1 else "one run"
                lines.append(
                    f"| {label if number == 0 else ''} | {what} | {form.format(row['measured'])} | {spread} "
                    f"| {form.format(row['predicted'])} |"
                )
        lines.append("")
    if served is not None:
        lines += [
            f"`{served['command']}`, {served['machine']['cpu']}, commit {served['commit'][:12]}; "
            f"9 of 10 steps within {served['results']['profile']['error']:.0%} of the profile.",
            "",
        ]
    if speed is not None:
        made = speed["results"]
        lines += [
            f"A plan over {made['candidates']} candidates (`{made['command']}`) took {_time(made)}: "
            f"{made['simulations']} runs, {made['simulated_steps']:,} steps and "
            f"{made['simulated_tokens']:,} output tokens, {made['steps_per_cpu_s']:,.0f} and "
            f"{made['tokens_per_cpu_s']:,.0f} a second. `{speed['command']}`, commit {speed['commit'][:12]}.",
            "",
        ]
    return "\n".join(lines)


def _time(made: Document) -> str:
    if made.get("processes", 1) == 1:
        return f"{made['cpu_s']:.0f} CPU seconds in one process"
    return f"{made['wall_s']:.0f} s in {made['processes']} processes, {made['cpu_s']:.0f} CPU seconds in all"


def _stored(name: str) -> Document | None:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, (BEGIN, END), content(), script="plan_page.py", words=sys.argv[1:]))
