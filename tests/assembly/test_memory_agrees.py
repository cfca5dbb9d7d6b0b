"""Memory is told by one set of figures: `kvist inspect`, the engine, plans for a host and predictions for devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvist.assembly.build_engine import build_engine
from kvist.assembly.memory_size import size_memory
from kvist.cli.host_profiles import room_of
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.memory import device_memory, kv_bytes_per_token
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.costmodel.number_format import find_format
from kvist.costmodel.profile_table import ProfiledEngine
from kvist.costmodel.roofline import Placement
from kvist.execution.memory_model import memory_table
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.model
LIMITS = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=2)


def spec_of(path: Path):
    return read_model(open_checkpoint(path)).spec


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_the_engine_makes_what_inspect_says(default_model: Path, executor: str) -> None:
    config = EngineConfig(
        model=ModelConfig(model=str(default_model), max_model_len=256),
        executor=ExecutorConfig(executor=executor),
        scheduler=LIMITS,
    )
    said = size_memory(config, spec_of(default_model), max_num_batched_tokens=64)
    built = build_engine(config, lambda phase: None)
    try:
        info = built.info
        assert (info.num_blocks, info.kv_cache_bytes) == (said.num_blocks, said.kv_pool_bytes)
        assert info.weight_bytes == pytest.approx(said.weight_bytes, rel=0.05)
        assert info.workspace_bytes <= 1.05 * said.workspace_bytes
    finally:
        built.close()


def test_a_plan_for_a_host_has_the_pool_that_its_engine_makes(default_model: Path) -> None:
    spec, free_bytes = spec_of(default_model), 3 << 30
    engine = memory_table(
        spec,
        CacheConfig(),
        executor="native",
        max_num_batched_tokens=256,
        max_num_seqs=64,
        max_model_len=None,
        free_bytes=free_bytes,
    )
    profiled = ProfiledEngine(
        model_spec=spec,
        executor="native",
        flags=[],
        kv_cache_dtype="auto",
        kv_bytes_per_token=engine.kv_bytes_per_token,
        block_size=engine.block_size,
        free_memory_bytes=free_bytes,
    )
    room = room_of(profiled, free_bytes, max_num_batched_tokens=256, max_num_seqs=64)
    assert room == engine.num_kv_tokens


def test_predictions_for_devices_count_weights_and_keys_as_the_engine_does(default_model: Path) -> None:
    spec = spec_of(default_model)
    listed = find_model_spec("smollm2-135m")
    for executor, form in (("native", "bf16"), ("reference", "fp32")):
        table = memory_table(
            spec,
            CacheConfig(),
            executor=executor,
            max_num_batched_tokens=256,
            max_num_seqs=4,
            max_model_len=None,
            free_bytes=8 << 30,
        )
        for model in (spec, listed):
            placement = Placement(model=model, device=find_device("h100"), number_format=find_format(form))
            assert kv_bytes_per_token(placement) == table.kv_bytes_per_token
            if executor == "reference":  # the native one keeps weights as the file has them
                assert device_memory(placement).weight_bytes == pytest.approx(table.weight_bytes, rel=0.002)
