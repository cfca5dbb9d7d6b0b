"""How far off predictions are where a device, its family or its engine was left out: what bars elsewhere rest on."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvist.bench.calibration.fit import Fitted, Placed, log_error
from kvist.costmodel.calibration import Calibration, CalibrationEntry, Rule, TransferError
from kvist.costmodel.efficiency import Efficiency, KindName
from kvist.costmodel.engine_generation import is_modern
from kvist.costmodel.nearest_entry import family, nearest_entry

BAR_SHARE = 0.9  # of the rows lie within the error bar
LEAST_BAR = 0.03
FEW_ROWS = 20  # of a kind: fewer say nothing of devices to come


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """A row predicted without what was measured where it was. error: relative."""

    device: str
    generation: str
    rule: Rule
    kind: KindName
    thing: str
    error: float


def transfer_rows(groups: Mapping[tuple[str, str], Sequence[Placed]], calibration: Calibration) -> list[TransferRow]:
    """Every row by the entries that are left without its device, without the device's family, without its engine.

    And, of engines of today, without any entry. None of the fits that are used has seen the row or its device
    (or, in the third case, its engine).
    """
    rows = []
    for (device, generation), points in groups.items():
        seen: set[Rule] = set()
        for kept in _leave_out(device, generation, calibration.entries):
            nearest = nearest_entry(device, generation, msgspec.structs.replace(calibration, entries=kept))
            needs_modern = nearest.rule in ("engine", "nothing")
            if nearest.rule in seen or (needs_modern and not is_modern(generation)):
                continue
            seen.add(nearest.rule)
            entry = nearest.entry
            fitted = Fitted(Efficiency()) if entry is None else Fitted(entry.fitted(), entry.fp8_kv_bytes)
            rows += [
                TransferRow(
                    device=device,
                    generation=generation,
                    rule=nearest.rule,
                    kind=fitted.efficiency.kind.name,
                    thing=placed.predicted_thing,
                    error=math.expm1(log_error(placed, fitted)),
                )
                for placed in points
            ]
    return rows


def transfer_errors(rows: Sequence[TransferRow]) -> list[TransferError]:
    """What 9 of 10 rows kept to, where there are rows enough."""
    kinds: dict[tuple[Rule, KindName, str], list[float]] = defaultdict(list)
    for row in rows:
        kinds[row.rule, row.kind, row.thing].append(abs(row.error))
    return [
        TransferError(
            rule=rule,
            kind=kind,
            thing=thing,
            num_points=len(errors),
            error=round(max(LEAST_BAR, quantile(errors, BAR_SHARE)), 4),
        )
        for (rule, kind, thing), errors in sorted(kinds.items())
        if len(errors) >= FEW_ROWS
    ]


def transfer_table(rows: Sequence[TransferRow]) -> list[tuple[str, ...]]:
    """Cells: what was left out, of which device, kind of engine, what, rows, mean and median error, 9 of 10 within."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        groups[LEFT_OUT[row.rule], row.device, row.kind, row.thing].append(abs(row.error))
        groups[LEFT_OUT[row.rule], "all", row.kind, row.thing].append(abs(row.error))
    order = [*LEFT_OUT.values()]
    names = sorted(groups, key=lambda name: (order.index(name[0]), name[1] != "all", name))
    return [
        (
            *name,
            str(len(groups[name])),
            f"{statistics.fmean(groups[name]):.1%}",
            f"{statistics.median(groups[name]):.1%}",
            f"{quantile(groups[name], BAR_SHARE):.1%}",
        )
        for name in names
    ]


LEFT_OUT: dict[Rule, str] = {
    "sister": "the device",
    "device": "the device and its sisters",
    "engine": "the engine",
    "nothing": "all: data sheet and priors",
}


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _leave_out(device: str, generation: str, entries: Sequence[CalibrationEntry]) -> list[list[CalibrationEntry]]:
    sisters = family(device)
    return [
        [entry for entry in entries if entry.device != device],
        [entry for entry in entries if entry.device not in sisters],
        [entry for entry in entries if entry.generation != generation],
        [],
    ]
