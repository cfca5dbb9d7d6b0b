"""What `kvist advise` prints, its JSON and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvist.cli.plan_output import serve_lines, text_table
from kvist.planner.advisor import Advice, Tried
from kvist.planner.assessment import Assessment
from kvist.planner.commands import PlanCommands, plan_commands, simulate_command
from kvist.planner.evaluation import PlanningProblem
from kvist.planner.guide import compared_with_guide
from kvist.planner.plan import MIN_LIFETIMES
from kvist.report.bar_plots import bar_plot, waterfall
from kvist.report.page import Report, page_facts

HEADERS = (
    "step", "stage", "capacity/s", "goodput/s", "TTFT P90 ms", "TPOT P90 ms", "gain", "complexity",
    "accuracy risk", "simulation",
)  # fmt: skip
SATURATED = "saturated"


def advice_lines(
    advice: Advice, problem: PlanningProblem, *, guide: Sequence[str], recommended: Sequence[str], folder: Path
) -> list[str]:
    deployment = problem.deployment
    refused = [[each.technique.name, str(each.stage), each.why, each.after.config_hash] for each in advice.refused]
    return [
        f"{deployment.model} on {advice.final.candidate.num_devices} x {deployment.device.name}, load "
        f"{problem.load.name} ({len(problem.load.draws[0]):,} requests), {deployment.objective.text}",
        f"latencies at {advice.reference_rate_per_s:.3g} requests/s; {advice.num_assessed} setups simulated",
        *_too_short(advice, problem),
        "",
        *text_table(HEADERS, [_cells("plain baseline", advice.baseline), *map(tried_cells, advice.taken)]),
        "",
        f"advice: {advice.final.candidate.text}",
        "",
        "left out:",
        *text_table(("technique", "stage", "why", "simulation"), refused),
        "",
        *(f"guide, {line}" for line in guide),
        *(f"  {line}" for line in compared_with_guide(advice, recommended)),
        "",
        "any row again, with its simulation's name for NAME:",
        f"  {simulated_by(advice, problem, folder / 'NAME.toml')}",
        *serve_lines(commands_of(advice, problem, folder)),
    ]


def commands_of(advice: Advice, problem: PlanningProblem, folder: Path) -> PlanCommands:
    """What simulates, serves and drives the advice, at the rate at which setups were compared."""
    return plan_commands(
        advice.final.candidate,
        problem,
        rate_per_s=advice.reference_rate_per_s,
        config_file=str(folder / f"{advice.final.config_hash}.toml"),
    )


def _too_short(advice: Advice, problem: PlanningProblem) -> list[str]:
    num_lifetimes = load_lifetimes(advice, problem)
    if num_lifetimes >= MIN_LIFETIMES:
        return []
    return [
        f"the load is over after {num_lifetimes:.1f} lifetimes of a request at that rate: compare goodputs with each "
        "other, and give --num-prompts more to believe them"
    ]


def load_lifetimes(advice: Advice, problem: PlanningProblem) -> float:
    """How long the load lasts at the common rate, in lifetimes of a request or, where others follow, of all of them."""
    return len(problem.load.draws[0]) / advice.reference_rate_per_s / problem.lifetime_s


def simulated_by(advice: Advice, problem: PlanningProblem, config_file: Path) -> str:
    return simulate_command(problem, rate_per_s=advice.reference_rate_per_s, config_file=str(config_file))


def tried_cells(tried: Tried) -> list[str]:
    return _cells(tried.technique.name, tried.after, tried)


def advice_document(
    advice: Advice, problem: PlanningProblem, *, guide: Sequence[str], recommended: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Any: what JSON holds."""
    return {
        "model": problem.deployment.model,
        "device": problem.deployment.device.name,
        "num_devices": advice.final.candidate.num_devices,
        "workload": problem.load.name,
        "num_prompts": len(problem.load.draws[0]),
        "seed": problem.load.seed,
        "objective": problem.deployment.objective.text,
        "reference_rate": advice.reference_rate_per_s,
        "load_lifetimes": load_lifetimes(advice, problem),
        "baseline": _assessed(advice.baseline, advice, problem, folder),
        "taken": [_tried(each, advice, problem, folder) for each in advice.taken],
        "refused": [_tried(each, advice, problem, folder) for each in advice.refused],
        "final": _assessed(advice.final, advice, problem, folder),
        "commands": asdict(commands_of(advice, problem, folder)),
        "guide": list(guide),
        "compared_with_guide": compared_with_guide(advice, recommended),
    }


def write_report(path: Path, document: Mapping[str, Any], advice: Advice) -> None:
    page = Report(
        f"Advice for {document['model']} on {document['num_devices']} x {document['device']}",
        facts=page_facts(document, "workload", "objective"),
    )
    page.add_text(f"Advice: {advice.final.candidate.text}.")
    levels = [each.goodput_per_s or 0.0 for each in (advice.baseline, *(each.after for each in advice.taken))]
    steps = [("plain", levels[0])] + [
        (each.technique.name, after - before)
        for each, before, after in zip(advice.taken, levels, levels[1:], strict=False)
    ]
    page.add_plot(waterfall("Goodput, step by step", steps, y_label="requests/s", total="advice"))
    names = ["plain", *(each.technique.name for each in advice.taken)]
    setups = [advice.baseline, *(each.after for each in advice.taken)]
    page.add_plot(
        bar_plot(
            "Latencies, P90",
            names,
            {
                "TTFT": [None if each.point.ttft.p90 is None else each.point.ttft.p90 * 1e3 for each in setups],
                "TPOT": [None if each.point.tpot.p90 is None else each.point.tpot.p90 * 1e3 for each in setups],
            },
            y_label="ms",
        ),
        caption=f"At {advice.reference_rate_per_s:.3g} requests/s for all; n/a: saturated there.",
    )
    page.add_table(HEADERS, [_cells("plain baseline", advice.baseline), *map(tried_cells, advice.taken)])
    page.add_table(
        ("technique", "stage", "why it is left out"),
        [[each.technique.name, str(each.stage), each.why] for each in advice.refused],
    )
    page.add_heading("The guide")
    page.add_text("\n\n".join(f"{line}." for line in (*document["guide"], *document["compared_with_guide"])))
    page.write(path)


def _cells(name: str, assessed: Assessment, tried: Tried | None = None) -> list[str]:
    ttft, tpot = assessed.point.ttft.p90, assessed.point.tpot.p90
    stage = "" if tried is None else "must-have" if tried.stage is None else str(tried.stage)
    return [
        name,
        stage,
        "" if assessed.capacity_per_s is None else f"{assessed.capacity_per_s:.3g}",
        "" if assessed.goodput_per_s is None else f"{assessed.goodput_per_s:.3g}",
        SATURATED if ttft is None else f"{ttft * 1e3:,.0f}",
        SATURATED if tpot is None else f"{tpot * 1e3:,.1f}",
        "" if tried is None or tried.gain is None else f"{tried.gain:+.0%}",
        "" if tried is None else str(tried.technique.complexity),
        "" if tried is None else tried.technique.accuracy_risk,
        assessed.config_hash,
    ]


def _assessed(assessed: Assessment, advice: Advice, problem: PlanningProblem, folder: Path) -> dict[str, Any]:
    """Any: what JSON holds. Null latencies: saturated."""
    return {
        "setup": assessed.candidate.text,
        "goodput": assessed.goodput_per_s,
        "capacity": assessed.capacity_per_s,
        "ttft_p90_s": assessed.point.ttft.p90,
        "tpot_p90_s": assessed.point.tpot.p90,
        "load_factor_at_most": assessed.point.load_factor,
        "cache_hit_share": assessed.point.cache_hit_share,
        "config_hash": assessed.config_hash,
        "event_digest": assessed.point.event_digest,
        "simulate": simulated_by(advice, problem, folder / f"{assessed.config_hash}.toml"),
        "config": assessed.config_text,
    }


def _tried(tried: Tried, advice: Advice, problem: PlanningProblem, folder: Path) -> dict[str, Any]:
    """Any: what JSON holds."""
    return {
        "technique": tried.technique.name,
        "stage": "must-have" if tried.stage is None else str(tried.stage),
        "gain": tried.gain,
        "why": tried.why,
        "complexity": str(tried.technique.complexity),
        "accuracy_risk": tried.technique.accuracy_risk,
        **_assessed(tried.after, advice, problem, folder),
    }
