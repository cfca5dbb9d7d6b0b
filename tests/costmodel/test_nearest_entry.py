"""Where nothing was measured, the nearest fit is used, with a bar that says from how far it came."""

from __future__ import annotations

import msgspec
import pytest

from kvist.core.errors import ConfigError
from kvist.costmodel.calibration import (
    LAYOUT_VERSION,
    Calibration,
    CalibrationEntry,
    TransferError,
    parse_calibration,
    shipped_calibration,
)
from kvist.costmodel.efficiency import PRIORS
from kvist.costmodel.nearest_entry import WIDER, error_share, mean_entry, nearest_entry


def entry(device: str, generation: str, *, num_points: int = 10, gemm: float = 0.5) -> CalibrationEntry:
    return CalibrationEntry(
        device=device,
        generation=generation,
        kind="graphs",
        efficiency=PRIORS["graphs"].numbers() | {"gemm": gemm},
        num_points=num_points,
        errors={"itl": 0.1},
        fp8_kv_bytes=1.0,
        models=["llama-3.1-8b"],
        max_tensor_parallel_size=8,
    )


H100, H200 = entry("H100-80GB-SXM", "vllm-2025", gemm=0.4), entry("H200-141GB-SXM", "vllm-2025", gemm=0.9)
OLD = entry("A100-80GB-SXM", "turbomind-2023")
MEASURED = TransferError(rule="device", kind="graphs", thing="itl", num_points=50, error=0.12)
CALIBRATION = Calibration(
    layout_version=LAYOUT_VERSION, source="a test", entries=[H100, H200, OLD], transfers=[MEASURED]
)


@pytest.mark.parametrize(
    ("device", "generation", "rule"),
    [
        ("H100-80GB-SXM", "vllm-2025", "same"),
        ("H800-80GB-SXM", "vllm-2025", "sister"),
        ("A100-80GB-SXM", "vllm-2025", "device"),
        ("L4", "vllm-2025", "device"),
        ("H100-80GB-SXM", "sglang-2025", "engine"),
        ("L4", "sglang-2025", "nothing"),
    ],
)
def test_the_nearest_is_the_same_then_a_sister_then_another_device_then_another_engine(
    device: str, generation: str, rule: str
) -> None:
    assert nearest_entry(device, generation, CALIBRATION).rule == rule


def test_several_devices_count_together_by_their_geometric_mean() -> None:
    found = nearest_entry("A100-80GB-SXM", "vllm-2025", CALIBRATION).entry
    assert found is not None
    assert found.efficiency["gemm"] == pytest.approx(0.6)
    assert found.num_points == 20
    assert "H100-80GB-SXM and H200-141GB-SXM" in found.device


def test_entries_of_another_kind_of_engine_do_not_count() -> None:
    launching = msgspec.structs.replace(H100, kind="launches", num_points=5)
    assert mean_entry([launching, H200]) is H200


def test_a_bar_is_narrowed_only_where_devices_of_the_family_were_left_out() -> None:
    known = nearest_entry("A100-80GB-SXM", "vllm-2025", CALIBRATION)
    strange = nearest_entry("L4", "vllm-2025", CALIBRATION)
    assert error_share(known, "itl", CALIBRATION) == MEASURED.error
    assert error_share(strange, "itl", CALIBRATION) == pytest.approx(WIDER["device"] * 0.1)


def test_the_shipped_calibration_says_how_far_off_it_is_elsewhere() -> None:
    rules = {each.rule for each in shipped_calibration().transfers}
    assert rules == {"sister", "device", "engine", "nothing"}


def test_a_calibration_with_other_numbers_is_refused() -> None:
    odd = msgspec.structs.replace(H100, efficiency={"gemm": 0.5})
    data = msgspec.json.encode(Calibration(layout_version=LAYOUT_VERSION, source="a test", entries=[odd]))
    with pytest.raises(ConfigError, match="it needs gemm, memory"):
        parse_calibration(data, "mine.json")
    with pytest.raises(ConfigError, match="layout 1"):
        parse_calibration(b'{"layout_version": 1, "entries": 3}', "mine.json")
