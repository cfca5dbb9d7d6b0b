"""Sampling options that a model file recommends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvist.core.errors import CheckpointError
from kvist.runtime.sampling_defaults import read_sampling_defaults
from kvist.weights.checkpoint import Checkpoint


def gguf(**metadata: Any) -> Checkpoint:
    named = {f"general.sampling.{name}": value for name, value in metadata.items()}
    return Checkpoint(path=Path("m.gguf"), kind="gguf", metadata=named, tensors={}, identity="")


def folder(path: Path, **config: Any) -> Checkpoint:
    (path / "generation_config.json").write_bytes(msgspec.json.encode(config))
    return Checkpoint(path=path, kind="hf", metadata={}, tensors={}, identity="")


def test_both_kinds_of_checkpoint_are_read(tmp_path: Path) -> None:
    expected = {"temperature": 0.6, "top_p": 0.9, "top_k": 40}
    assert read_sampling_defaults(gguf(temp=0.6, top_p=0.9, top_k=40)) == expected
    assert read_sampling_defaults(folder(tmp_path, temperature=0.6, top_p=0.9, top_k=40, eos_token_id=2)) == expected


def test_a_file_that_recommends_nothing_changes_nothing(tmp_path: Path) -> None:
    assert read_sampling_defaults(gguf()) == {}
    assert read_sampling_defaults(folder(tmp_path, temperature=None)) == {}


def test_top_k_of_minus_one_means_off() -> None:
    assert read_sampling_defaults(gguf(top_k=-1)) == {"top_k": 0}


@pytest.mark.parametrize("bad", [{"temp": -1.0}, {"temp": "hot"}, {"top_p": 2.0}, {"top_k": True}])
def test_what_is_not_possible_is_refused_with_the_way_out(bad: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="--generation-config off"):
        read_sampling_defaults(gguf(**bad))
