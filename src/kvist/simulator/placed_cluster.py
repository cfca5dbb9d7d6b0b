"""Fills in what a cluster's description leaves to its models and devices: step times, room for KV, bytes of KV."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvist.config.cluster_config import KV_BYTES_PER_TOKEN, ClusterConfig, ReplicaGroupConfig
from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec
from kvist.costmodel.calibrated_model import calibrated_model
from kvist.costmodel.calibration import Calibration
from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.engine_generation import CURRENT, find_generation
from kvist.costmodel.materialized_attention import MaterializedAttention
from kvist.costmodel.memory import device_memory, kv_bytes_per_token
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.costmodel.model_size import count_parameters
from kvist.costmodel.number_format import find_format, kv_element_bytes
from kvist.costmodel.roofline import Placement
from kvist.costmodel.step_time_model import StepTimeModel

FindModel = Callable[[str], ModelSpec]


def placement_of(group: ReplicaGroupConfig, find_model: FindModel = find_model_spec) -> Placement:
    """The group's model on its devices. Raises ConfigError if it names none."""
    if group.model is None or group.device is None:
        raise ConfigError(f"the replicas {group.name!r} need a model and a device, or a table of step times")
    spec = find_model(group.model)
    if group.num_kv_heads is not None:
        spec = with_kv_heads(spec, group.num_kv_heads)
    return Placement(
        model=spec,
        device=find_device(group.device),
        number_format=find_format(group.dtype),
        tensor_parallel_size=group.tensor_parallel_size,
        pipeline_parallel_size=group.pipeline_parallel_size,
        kv_element_bytes=kv_element_bytes(group.kv_cache_dtype),
    )


def place_cluster(
    config: ClusterConfig,
    step_times: Mapping[str, StepTimeModel],
    *,
    find_model: FindModel = find_model_spec,
    generation: str = CURRENT,
    calibration: Calibration | None = None,
) -> tuple[ClusterConfig, dict[str, StepTimeModel]]:
    """The complete cluster, and a step-time model of each group: those given, else of the group's model and device.

    generation: of the engine, where a group names none.

    Raises ConfigError if something is left open, or if a model does not fit.
    """
    for phase, weights in (
        ("prefill", [group.prefill_weight for group in config.groups]),
        ("decode", [group.decode_weight for group in config.groups]),
    ):
        if not any(weights):
            raise ConfigError(f"no replica may {phase}: give one group a {phase}_weight above 0")
    groups, models, bytes_per_token = [], dict(step_times), set()
    for group in config.groups:
        needs_placement = group.name not in models or group.kv_cache_tokens is None
        placement = placement_of(group, find_model) if needs_placement or (group.model and group.device) else None
        if placement is None:
            groups.append(group)
            continue
        if group.name not in models:
            own_generation = find_generation(group.engine) if group.engine else generation
            model = calibrated_model(
                placement, generation=own_generation, calibration=calibration, model_name=group.model or ""
            )
            placement = model.placement
            models[group.name] = MaterializedAttention(model) if group.attention == "materialized" else model
        bytes_per_token.add(round(kv_bytes_per_token(placement)))
        if group.kv_cache_tokens is None:
            memory = device_memory(placement, max_num_batched_tokens=group.max_num_batched_tokens)
            group = replace(group, kv_cache_tokens=memory.num_kv_tokens)
        groups.append(group)
    cache = config.cache
    if cache.kv_bytes_per_token is None:
        if len(bytes_per_token) > 1:
            raise ConfigError("the replicas' models have KV of different sizes, so they cannot share any")
        cache = replace(cache, kv_bytes_per_token=bytes_per_token.pop() if bytes_per_token else KV_BYTES_PER_TOKEN)
    return replace(config, groups=tuple(groups), cache=cache), models


def with_kv_heads(spec: ModelSpec, num_kv_heads: int) -> ModelSpec:
    """The model with other heads of K and V. Raises ConfigError if the query heads cannot share them evenly."""
    if spec.num_q_heads % num_kv_heads:
        raise ConfigError(
            f"num_kv_heads {num_kv_heads}: the model's {spec.num_q_heads} query heads are no multiple of it"
        )
    spec = replace(spec, num_kv_heads=num_kv_heads)
    return replace(spec, num_parameters=count_parameters(spec))
