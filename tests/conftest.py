"""Fixtures that many folders use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvist.config.model_config import DEFAULT_MODEL
from kvist.weights.catalogue import CATALOGUE
from kvist.weights.fetch import cached_entry
from kvist.weights.random_model import HF_FORMATS, make_random_model

TinyModel = Callable[..., Path]

# Tests do not time: the machine may be busy. They try the same examples in every run: a red one is the change's doing.
# `scripts/test --hypothesis-profile=explore` tries others.
settings.register_profile("kvist", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("kvist"), derandomize=False)
settings.load_profile("kvist")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """`tiny_model("llama", "f32")`: path of a random tiny-llama, made once per session. Formats: RANDOM_FORMATS."""
    folder = tmp_path_factory.mktemp("tiny-models")

    def make(architecture: str = "llama", weight_format: str = "f32", seed: int = 0) -> Path:
        suffix = "" if weight_format in HF_FORMATS else ".gguf"
        path = folder / f"tiny-{architecture}-{weight_format}-{seed}{suffix}"
        if not path.exists():
            make_random_model(f"tiny-{architecture}", weight_format, path, seed=seed)
        return path

    return make


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Path of the default model, which `kvist pull` fetches; tests that use it are marked `model`."""
    path = cached_entry(CATALOGUE[DEFAULT_MODEL])
    if path is None:
        pytest.skip("the default model is not in the cache: run kvist pull")
    return path
