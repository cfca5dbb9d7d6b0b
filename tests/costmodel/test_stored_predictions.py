"""A grid of predictions is kept on file, so that none of them changes unseen. To renew: scripts/store_predictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvist.costmodel.prediction_grid import predict_grid

STORED = Path(__file__).parent / "predictions.json"


def test_predictions_are_those_on_file() -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    now = predict_grid()
    assert list(now) == list(stored)
    changed = {name: (stored[name], now[name]) for name in now if now[name] != pytest.approx(stored[name], rel=1e-4)}
    assert not changed, "predictions moved; if that is meant, renew the file and say so in the change"
