"""From measured points to a calibration file and a report of how far off its predictions are on rows held out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from kvist.bench.calibration.fit import Fitted, Placed, fit, held_out_errors, log_error, placed_points
from kvist.bench.calibration.points import BadPoint, Point
from kvist.bench.calibration.transfer import BAR_SHARE, LEAST_BAR, TransferRow, quantile, transfer_errors, transfer_rows
from kvist.bench.worker_processes import worker_processes
from kvist.core.errors import ConfigError
from kvist.costmodel.calibration import LAYOUT_VERSION, Calibration, CalibrationEntry
from kvist.execution.threads import granted_cores

FEW_ROWS = 5  # of a kind in a group: below it all groups' errors count
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """One row: relative error of a fit to all rows, to four fifths without it, and to the other models' rows."""

    group: Group
    model: str
    kind: str
    thing: str
    fitted: float
    held_out: float
    model_left_out: float | None


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    calibration: Calibration
    rows: list[RowError]
    transfers: list[TransferRow]


def calibrate(
    rows: Sequence[Point | BadPoint],
    *,
    source: str,
    is_quick: bool = False,
    show: Callable[[str], None] = lambda _: None,
) -> CalibrationResult:
    """Fit every device and generation that `rows` have. is_quick: without leaving models out. Raises ConfigError."""
    groups: dict[Group, list[Placed]] = defaultdict(list)
    placed_rows = placed_points(rows)
    for placed in placed_rows:
        groups[placed.group].append(placed)
    if not groups:
        raise ConfigError("none of the points can be fitted: no measured row has a known model, device and metric")
    show(f"fitting to {len(placed_rows)} of {len(rows)} rows; the others are not measured, or not understood")
    ordered = sorted(groups.values(), key=len, reverse=True)
    fitted: dict[Group, Fitted] = {}
    errors: list[RowError] = []
    with worker_processes(granted_cores()) as pool:
        for points, (found, found_errors) in zip(
            ordered, pool.map(partial(_fit_group, is_quick=is_quick), ordered), strict=True
        ):
            fitted[points[0].group] = found
            errors += found_errors
            show(f"{' '.join(points[0].group)}: {len(points)} points")
    entries = [_entry(groups[group], fitted[group], errors) for group in sorted(groups)]
    calibration = Calibration(layout_version=LAYOUT_VERSION, source=source, entries=entries)
    transfers = transfer_rows(groups, calibration)
    calibration = msgspec.structs.replace(calibration, transfers=transfer_errors(transfers))
    return CalibrationResult(calibration, errors, transfers)


def _fit_group(points: Sequence[Placed], *, is_quick: bool) -> tuple[Fitted, list[RowError]]:
    found = fit(points)
    left_out: dict[int, float] = {} if is_quick else dict(_leave_models_out(points, found))
    return found, [
        RowError(
            group=placed.group,
            model=placed.point.model,
            kind=placed.point.kind,
            thing=placed.predicted_thing,
            fitted=math.expm1(log_error(placed, found)),
            held_out=math.expm1(error),
            model_left_out=left_out.get(id(placed)),
        )
        for placed, error in held_out_errors(points, found)
    ]


def _leave_models_out(points: Sequence[Placed], found: Fitted) -> Iterable[tuple[int, float]]:
    models = sorted({placed.point.model for placed in points})
    for model in models if len(models) > 1 else ():
        without = fit([placed for placed in points if placed.point.model != model], near=found)
        for placed in points:
            if placed.point.model == model:
                yield id(placed), math.expm1(log_error(placed, without))


def _entry(points: Sequence[Placed], fitted: Fitted, errors: Sequence[RowError]) -> CalibrationEntry:
    device, generation = points[0].group
    bars = {}
    for thing in sorted({placed.predicted_thing for placed in points}):
        own = [row.held_out for row in errors if row.group == (device, generation) and row.thing == thing]
        if len(own) < FEW_ROWS:
            own += [row.held_out for row in errors if row.thing == thing]
        bars[thing] = round(max(LEAST_BAR, quantile([abs(error) for error in own], BAR_SHARE)), 4)
    return CalibrationEntry(
        device=device,
        generation=generation,
        kind=fitted.efficiency.kind.name,
        efficiency={name: float(f"{value:.5g}") for name, value in fitted.efficiency.numbers().items()},
        num_points=len(points),
        errors=bars,
        fp8_kv_bytes=fitted.fp8_kv_bytes,
        models=sorted({placed.point.model.lower() for placed in points}),
        max_tensor_parallel_size=max(placed.placement.tensor_parallel_size for placed in points),
    )
