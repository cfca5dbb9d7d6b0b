"""What `kvist plan` prints, its JSON and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvist.planner.commands import PlanCommands
from kvist.planner.evaluation import Evaluation, PlanningProblem
from kvist.planner.operating_point import SATURATED, SUSTAINED_SHARE, OperatingPoint
from kvist.planner.plan import Plan, PlanPoint
from kvist.report.bar_plots import bar_plot
from kvist.report.line_plots import line_plot
from kvist.report.page import Report, page_facts

HEADERS = (
    "plan", "devices", "goodput/s", "per device", "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "load", "$/M in",
    "$/M out",
)  # fmt: skip
BEYOND = "saturated"
MAX_BARS = 15


def plan_lines(plan: Plan, problem: PlanningProblem, commands: PlanCommands) -> list[str]:
    deployment, winner, bar = problem.deployment, plan.winner, plan.error_bar
    found = plan.search
    lines = [
        f"{deployment.model} on {deployment.device.name}, load {problem.load.name} ({len(problem.load.draws[0]):,} "
        f"requests, {problem.facts.mean_prompt_tokens:.0f} in / {problem.facts.mean_output_tokens:.0f} out), "
        f"{deployment.objective.text}",
        f"{found.num_candidates} candidates, {found.num_bounded_out} left out by bounds, "
        f"{found.num_simulations} simulations",
        "",
        "Pareto front (goodput, latency, dollars); latencies in ms, at the planned rate:",
        *text_table(HEADERS, [point_cells(point) for point in plan.front]),
    ]
    if plan.others:
        lines += ["", "Behind it:", *text_table(HEADERS, [point_cells(point) for point in plan.others])]
    lines += [
        "",
        f"winner: {winner.evaluation.candidate.text}",
        f"  goodput {winner.goodput_per_s:.3g} requests/s",
        f"  found with this load: {error_text(plan)}",
        f"  load factor {winner.point.load_factor:.2f} of {winner.point.capacity_per_s:.3g} requests/s, attainment "
        f"{winner.point.attainment:.1%} at {winner.point.rate_per_s:.3g} requests/s"
        + ("" if winner.keeps_objective else f", under the target of {deployment.objective.attainment:.1%}"),
        f"  step times: {bar.reason}; error bars {bar.decode_bar:.0%} (decode), {bar.prefill_bar:.0%} (prefill)",
        *(f"  {reason}" for reason in plan.reasons),
    ]
    found_per_s = winner.evaluation.rate_per_s
    if found_per_s > SUSTAINED_SHARE * winner.point.capacity_per_s:
        lines.append(
            f"  this load would pass at up to {found_per_s:.3g} requests/s, but no more than "
            f"{winner.point.capacity_per_s:.3g} can be completed for long: goodput is counted below that"
        )
    elif winner.goodput_per_s < found_per_s:
        lines.append(
            f"  the part of the load that searches play passes at up to {found_per_s:.3g} requests/s, all of it only "
            "at the goodput given"
        )
    if winner.point.is_saturated:
        lines.append(
            f"  load factor {SATURATED} or more: queues grow for as long as the load lasts, so no latencies are given"
        )
    if not plan.is_load_long_enough:
        lines.append(
            f"  the load is over after {plan.num_lifetimes:.1f} lifetimes of a request: too soon to fill queues, so "
            "the goodput is an upper estimate; give a longer load"
        )
    if plan.rate_per_s is not None and winner.goodput_per_s < plan.rate_per_s:
        lines.append(
            f"  it does not keep up {plan.rate_per_s:g} requests/s: give a longer load, other targets, or larger units"
        )
    return [*lines, "", "simulate it:", f"  {commands.simulate}", *serve_lines(commands)]


def serve_lines(commands: PlanCommands) -> list[str]:
    """How a plan or an advice is served, or why it is not, and driven."""
    lines = ["serve a replica of it:", *(f"  {command}" for command in dict.fromkeys(commands.serve.values()))]
    if commands.simulated_only:
        lines.append(f"  simulated only: {commands.simulated_only}")
    if commands.drive:
        lines += ["drive it at the simulated rate, once it serves:", f"  {commands.drive}"]
    return lines


def error_text(plan: Plan) -> str:
    """The winner's goodput with what it depends on."""
    bar = plan.error_bar
    spread = (
        "" if bar.draws.half_width is None else f" +- {bar.draws.half_width:.2g} over {len(bar.draws.values)} draws"
    )
    return (
        f"{bar.draws.mean:.3g} requests/s{spread}; {min(bar.slow_steps, bar.fast_steps):.3g} to "
        f"{max(bar.slow_steps, bar.fast_steps):.3g} within the cost model's error bar"
    )


def point_cells(point: PlanPoint) -> list[str]:
    evaluation, at = point.evaluation, point.point
    cost = (
        ("-", "-")
        if point.cost is None
        else (_dollars(point.cost.per_million_input), _dollars(point.cost.per_million_output))
    )
    return [
        evaluation.candidate.text,
        str(evaluation.candidate.num_devices),
        f"{point.goodput_per_s:.3g}",
        f"{point.goodput_per_s / evaluation.candidate.num_devices:.3g}",
        _ms(at.ttft.p50, at),
        _ms(at.ttft.p99, at),
        _ms(at.tpot.p50, at),
        _ms(at.tpot.p99, at),
        f"{at.load_factor:.2f}",
        *cost,
    ]


def plan_document(plan: Plan, problem: PlanningProblem, commands: PlanCommands, config_text: str) -> dict[str, Any]:
    """Any: what JSON holds."""
    deployment, found = problem.deployment, plan.search
    return {
        "model": deployment.model,
        "device": deployment.device.name,
        "price_per_device_hour": deployment.price_per_device_hour,
        "workload": problem.load.name,
        "num_prompts": len(problem.load.draws[0]),
        "seed": problem.load.seed,
        "objective": asdict(deployment.objective),
        "rate": plan.rate_per_s,
        "load_lifetimes": plan.num_lifetimes,
        "is_load_long_enough": plan.is_load_long_enough,
        "candidates": found.num_candidates,
        "bounded_out": found.num_bounded_out,
        "simulations": found.num_simulations,
        "simulated_steps": found.num_steps,
        "simulated_tokens": found.num_tokens,
        "winner": point_document(plan.winner),
        "error_bar": asdict(plan.error_bar),
        "reasons": list(plan.reasons),
        "front": [point_document(point) for point in plan.front],
        "others": [point_document(point) for point in plan.others],
        "units": [
            {"candidate": each.candidate.text, "devices": each.candidate.num_devices, "goodput": each.rate_per_s}
            for each in found.units
        ],
        "commands": asdict(commands),
        "config": config_text,
    }


def point_document(point: PlanPoint) -> dict[str, Any]:
    """Any: what JSON holds. Latencies in seconds; null beyond saturation."""
    evaluation, at = point.evaluation, point.point
    low, high = (0.0, None) if evaluation.goodput is None else evaluation.goodput.sure_range
    return {
        "candidate": evaluation.candidate.text,
        "shapes": {name: asdict(shape) for name, shape in evaluation.candidate.shapes.items()},
        "num_units": evaluation.candidate.num_units,
        "num_devices": evaluation.candidate.num_devices,
        "policy": evaluation.candidate.policy,
        "token_budget": evaluation.candidate.token_budget,
        "max_num_seqs": evaluation.candidate.max_num_seqs,
        "kv_cache_tokens": evaluation.candidate.kv_cache_tokens,
        "enable_prefix_caching": evaluation.candidate.enable_prefix_caching,
        "profile": evaluation.candidate.profile,
        "router": evaluation.candidate.router,
        "number_format": evaluation.candidate.number_format,
        "goodput": point.goodput_per_s,
        "goodput_per_device": point.goodput_per_s / evaluation.candidate.num_devices,
        "goodput_of_this_load": evaluation.rate_per_s,
        "goodput_surely_above": low,
        "goodput_surely_below": high,
        "bound": evaluation.bound.max_rate_per_s,
        "rate": at.rate_per_s,
        "capacity": at.capacity_per_s,
        "load_factor": at.load_factor,
        "attainment": at.attainment,
        "keeps_objective": point.keeps_objective,
        "ttft_s": asdict(at.ttft),
        "tpot_s": asdict(at.tpot),
        "utilization": at.utilization,
        "cache_hit_share": at.cache_hit_share,
        "preemptions": at.num_preemptions,
        "cost": None if point.cost is None else asdict(point.cost),
        "event_digest": at.event_digest,
    }


def write_report(path: Path, document: Mapping[str, Any], plan: Plan, problem: PlanningProblem) -> None:
    """A page with the front, what else was tried, and attainment against rate."""
    page = Report(
        f"Plan for {problem.deployment.model} on {problem.deployment.device.name}",
        facts=page_facts(document, "workload"),
    )
    page.add_text(
        f"Objective {problem.deployment.objective.text}. Winner: {plan.winner.evaluation.candidate.text}, goodput "
        f"{plan.winner.goodput_per_s:.3g} requests/s (found: {error_text(plan)}), at a load "
        f"factor of {plan.winner.point.load_factor:.2f}."
    )
    page.add_text("\n\n".join(f"{reason}." for reason in plan.reasons))
    page.add_table(HEADERS, [point_cells(point) for point in plan.front], caption="Pareto front; latencies in ms")
    if plan.others:
        page.add_table(HEADERS, [point_cells(point) for point in plan.others], caption="Behind it")
    points = [plan.winner, *(point for point in (*plan.front, *plan.others) if point is not plan.winner)]
    page.add_plot(
        bar_plot(
            "Goodput per device",
            [point.evaluation.candidate.text for point in points],
            {
                "requests/s per device": [
                    point.goodput_per_s / point.evaluation.candidate.num_devices for point in points
                ]
            },
            y_label="requests/s per device",
        )
    )
    curves = {point.evaluation.candidate.text: _attainments(point.evaluation) for point in points[:4]}
    page.add_plot(
        line_plot(
            "Attainment against rate",
            {name: curve for name, curve in curves.items() if curve},
            x_label="requests/s",
            y_label="share of good requests, as far as runs went",
            target=problem.deployment.objective.attainment,
        )
    )
    units = sorted(plan.search.units, key=lambda each: -each.rate_per_device)[:MAX_BARS]
    page.add_plot(
        bar_plot(
            "First rounds: the best units",
            [each.candidate.text for each in units],
            {"requests/s per device": [each.rate_per_device for each in units]},
            y_label="requests/s per device",
        ),
        caption="Short runs, which flatter; they only choose whom to look at longer.",
    )
    page.add_text(f"Configuration:\n\n{document['config']}")
    page.write(path)


def _attainments(evaluation: Evaluation) -> Sequence[tuple[float, float]]:
    judgements = () if evaluation.goodput is None else evaluation.goodput.judgements
    return [(each.rate_per_s, each.num_good / max(each.num_good + each.num_bad, 1)) for each in judgements]


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, the first one left."""
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [headers, *rows]
    ]


def _ms(seconds: float | None, at: OperatingPoint) -> str:
    return BEYOND if at.is_saturated else "-" if seconds is None else f"{seconds * 1e3:,.0f}"


def _dollars(value: float) -> str:
    return f"{value:.3g}"
