"""Which fitted numbers predict a device and an engine generation, where maybe nobody has measured the two together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kvist.costmodel.calibration import Calibration, CalibrationEntry, Rule
from kvist.costmodel.efficiency import GRAPHS, NUMBERS
from kvist.costmodel.engine_generation import is_modern

FAMILIES = (
    ("A100-80GB-SXM", "A100-40GB-SXM", "A100-80GB-PCIe", "A100-40GB-PCIe", "A800-80GB-SXM"),
    ("H100-80GB-SXM", "H200-141GB-SXM", "H100-80GB-PCIe", "H800-80GB-SXM", "GH200-96GB", "H20-96GB-SXM"),
)
WIDER: dict[Rule, float] = {"same": 1.0, "sister": 1.3, "device": 1.8, "engine": 2.0, "nothing": 3.0}
UNMEASURED = {"decode": 0.2, "prefill": 0.25, "itl": 0.25, "ttft": 0.5, "e2e": 0.25, "throughput": 0.4}
WORDS: dict[Rule, str] = {
    "same": "fitted to it",
    "sister": "fitted to a sister of the device",
    "device": "fitted to another device",
    "engine": "fitted to other engines",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestEntry:
    """entry: None if there is nothing near. rule: how it was found. reason: the same in words.

    is_known_family: whether entries of the device's family, of whatever engine, were measured.
    """

    entry: CalibrationEntry | None
    rule: Rule
    reason: str
    is_known_family: bool


def family(device: str) -> tuple[str, ...]:
    """Devices with the same kind of cores and memory, itself among them."""
    return next((names for names in FAMILIES if device in names), (device,))


def nearest_entry(device: str, generation: str, calibration: Calibration) -> NearestEntry:
    """The device's own entry; else its sister's, other devices' or, of its family, other engines' of today.

    Several of other devices or engines count together, by the geometric mean of their numbers.
    """
    sisters, entries = family(device), calibration.entries
    is_known_family = any(entry.device in sisters for entry in entries)
    alike = [entry for entry in entries if entry.generation == generation]
    found: tuple[tuple[Rule, list[CalibrationEntry]], ...] = (
        ("same", [entry for entry in alike if entry.device == device]),
        ("sister", [entry for entry in alike if entry.device in sisters]),
        ("device", alike),
        ("engine", [entry for entry in entries if entry.device in sisters and is_modern(entry.generation)]),
    )
    for rule, near in found:
        if near:
            entry = mean_entry(near)
            reason = f"{WORDS[rule]}: {entry.device}, {entry.generation}, {entry.num_points} points"
            return NearestEntry(entry=entry, rule=rule, reason=reason, is_known_family=is_known_family)
    return NearestEntry(
        entry=None,
        rule="nothing",
        reason=f"nothing was measured of {device} or of {generation}; data sheet and usual efficiencies",
        is_known_family=is_known_family,
    )


def mean_entry(entries: Sequence[CalibrationEntry]) -> CalibrationEntry:
    """One that stands for all: numbers by their geometric mean, those of many points counting more; the widest errors.

    Only entries of the same kind of engine as the one with the most points count.
    """
    first = max(entries, key=lambda entry: (entry.num_points, entry.device, entry.generation))
    like_it = [entry for entry in entries if entry.kind == first.kind]
    if len(like_it) == 1:
        return first
    weights = [math.sqrt(entry.num_points) for entry in like_it]
    efficiency = {
        name: math.exp(
            sum(weight * math.log(entry.efficiency[name]) for weight, entry in zip(weights, like_it, strict=True))
            / sum(weights)
        )
        for name in NUMBERS
    }
    return msgspec.structs.replace(
        first,
        device=" and ".join(dict.fromkeys(entry.device for entry in like_it)),
        generation=" and ".join(dict.fromkeys(entry.generation for entry in like_it)),
        efficiency=efficiency,
        num_points=sum(entry.num_points for entry in like_it),
        errors={
            thing: max(entry.errors.get(thing, 0.0) for entry in like_it)
            for thing in {thing for entry in like_it for thing in entry.errors}
        },
        models=sorted({model for entry in like_it for model in entry.models}),
        max_tensor_parallel_size=max(entry.max_tensor_parallel_size for entry in like_it),
    )


def error_share(nearest: NearestEntry, thing: str, calibration: Calibration) -> float:
    """Half the width of the error bar of `thing`, as a share.

    The entry's own, or that of all rows that were predicted from so far away if it is wider. Where that was not
    measured, or nothing of the device's family was, the entry's is widened by a factor.
    """
    entry = nearest.entry
    own = UNMEASURED[thing] if entry is None else entry.errors.get(thing, UNMEASURED[thing])
    kind = GRAPHS.name if entry is None else entry.kind
    measured = {(each.rule, each.kind, each.thing): each.error for each in calibration.transfers}
    elsewhere = measured.get((nearest.rule, kind, thing))
    if elsewhere is not None and nearest.is_known_family:
        return max(own, elsewhere)
    return own * WIDER[nearest.rule]
