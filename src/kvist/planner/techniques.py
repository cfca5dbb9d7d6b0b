"""What can be done to serve a model better: each a change of a candidate, with what it costs besides devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from kvist.core.device_spec import DeviceSpec
from kvist.core.model_spec import ModelSpec
from kvist.planner.candidate import Candidate, Shape


class Effect(StrEnum):
    """What a stage of the optimization looks at; capacity is what the must-haves are judged by."""

    TTFT = "time to first token"
    TPOT = "time per output token"
    GOODPUT = "goodput"
    CAPACITY = "capacity"


class Complexity(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


# The least gain of its stage's metric that a technique must bring to be worth its complexity.
MIN_GAINS = {Complexity.LOW: 0.03, Complexity.MEDIUM: 0.08, Complexity.HIGH: 0.15}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a technique may depend on."""

    model: ModelSpec
    device: DeviceSpec
    num_devices: int


Apply = Callable[[Candidate, Surroundings], Candidate | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """apply: the candidate with it; None where it does not apply or is there already; can be sent to other processes.

    effects: stages that try it.
    """

    name: str
    apply: Apply
    complexity: Complexity
    effects: tuple[Effect, ...] = ()
    accuracy_risk: str = "none"


def _flash(candidate: Candidate, around: Surroundings) -> Candidate | None:
    return None if candidate.attention == "flash" else replace(candidate, attention="flash")


def _paged(candidate: Candidate, around: Surroundings) -> Candidate | None:
    whole = Candidate().max_num_seqs
    return None if candidate.max_num_seqs == whole else replace(candidate, max_num_seqs=whole)


def _gqa(candidate: Candidate, around: Surroundings) -> Candidate | None:
    return None if candidate.num_kv_heads is None else replace(candidate, num_kv_heads=None)


def _continuous(candidate: Candidate, around: Surroundings) -> Candidate | None:
    return replace(candidate, policy="prefill_first") if candidate.policy == "static" else None


def _chunked(budget: int, candidate: Candidate, around: Surroundings) -> Candidate | None:
    if candidate.is_disaggregated or (candidate.policy, candidate.token_budget) == ("chunked_prefill", budget):
        return None
    return replace(candidate, policy="chunked_prefill", token_budget=budget)


def _prefix_caching(candidate: Candidate, around: Surroundings) -> Candidate | None:
    return None if candidate.enable_prefix_caching else replace(candidate, enable_prefix_caching=True)


def _routed(name: str, candidate: Candidate, around: Surroundings) -> Candidate | None:
    num_replicas = candidate.num_units * sum(shape.count for shape in candidate.shapes.values())
    needs_cache = name in ("cache_aware", "kv_centric") and not candidate.enable_prefix_caching
    if num_replicas == 1 or candidate.router == name or needs_cache:
        return None
    return replace(candidate, router=name)


def _quantized(candidate: Candidate, around: Surroundings) -> Candidate | None:
    if candidate.number_format != "bf16":
        return None
    for number_format in ("fp8", "int8"):
        if around.device.peak(number_format) is not None:
            return replace(candidate, number_format=number_format)
    return replace(candidate, number_format="int8-weights")


def _tensor_parallel(candidate: Candidate, around: Surroundings) -> Candidate | None:
    shape = candidate.mixed
    if shape is None or candidate.num_units < 2:
        return None
    ranks = 2 * shape.tensor_parallel_size
    if around.model.num_q_heads % ranks:
        return None
    return replace(candidate, mixed=replace(shape, tensor_parallel_size=ranks), num_units=candidate.num_units // 2)


def _split(num_prefill: int, num_decode: int, candidate: Candidate, around: Surroundings) -> Candidate | None:
    """Prefill and decode on replicas of their own, as many devices as before."""
    shape = candidate.mixed
    num_units = candidate.num_units // (num_prefill + num_decode)
    if shape is None or num_units == 0:
        return None
    return replace(
        candidate,
        mixed=None,
        prefill=replace(shape, count=num_prefill),
        decode=replace(shape, count=num_decode),
        num_units=num_units,
        policy="prefill_first",
        router=candidate.router if candidate.router == "kv_centric" else "least_loaded",
    )


def _host_tier(candidate: Candidate, around: Surroundings) -> Candidate | None:
    if candidate.host_cache_gb or not candidate.enable_prefix_caching:
        return None
    return replace(candidate, host_cache_gb=HOST_CACHE_GB)


HOST_CACHE_GB = 128.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """What advice is made of. must_haves: in the order in which they turn `baseline` into an engine of today."""

    baseline: Candidate
    must_haves: Sequence[Technique]
    choices: Sequence[Technique]


MUST_HAVES = (
    Technique(name="FlashAttention", apply=_flash, complexity=Complexity.LOW),
    Technique(name="PagedAttention", apply=_paged, complexity=Complexity.LOW),
    Technique(name="GQA", apply=_gqa, complexity=Complexity.LOW, accuracy_risk="decided when the model is trained"),
    Technique(name="continuous batching", apply=_continuous, complexity=Complexity.LOW),
)
CHOICES = (
    Technique(
        name="prefix caching", apply=_prefix_caching, complexity=Complexity.LOW,
        effects=(Effect.TTFT, Effect.GOODPUT),
    ),
    Technique(
        name="chunked prefill (2048)", apply=partial(_chunked, 2048), complexity=Complexity.LOW,
        effects=(Effect.TTFT, Effect.TPOT, Effect.GOODPUT),
    ),
    Technique(
        name="chunked prefill (512)", apply=partial(_chunked, 512), complexity=Complexity.LOW,
        effects=(Effect.TPOT, Effect.GOODPUT),
    ),
    Technique(
        name="quantization", apply=_quantized, complexity=Complexity.MEDIUM,
        effects=(Effect.TTFT, Effect.TPOT, Effect.GOODPUT), accuracy_risk="small; measure it on your own tasks",
    ),
    Technique(
        name="tensor parallelism", apply=_tensor_parallel, complexity=Complexity.MEDIUM,
        effects=(Effect.TTFT, Effect.TPOT, Effect.GOODPUT),
    ),
    Technique(
        name="cache-aware routing", apply=partial(_routed, "cache_aware"), complexity=Complexity.MEDIUM,
        effects=(Effect.TTFT, Effect.GOODPUT),
    ),
    Technique(
        name="host tier", apply=_host_tier, complexity=Complexity.MEDIUM, effects=(Effect.TTFT, Effect.GOODPUT),
    ),
    Technique(
        name="disaggregation (1:1)", apply=partial(_split, 1, 1), complexity=Complexity.HIGH,
        effects=(Effect.TTFT, Effect.TPOT, Effect.GOODPUT),
    ),
    Technique(
        name="disaggregation (3:1)", apply=partial(_split, 3, 1), complexity=Complexity.HIGH,
        effects=(Effect.TPOT, Effect.GOODPUT),
    ),
    Technique(
        name="disaggregation (1:3)", apply=partial(_split, 1, 3), complexity=Complexity.HIGH,
        effects=(Effect.TPOT, Effect.GOODPUT),
    ),
    Technique(
        name="KV-centric cluster", apply=partial(_routed, "kv_centric"), complexity=Complexity.HIGH,
        effects=(Effect.TTFT, Effect.GOODPUT),
    ),
)  # fmt: skip


def plain_baseline(
    shape: Shape, *, num_devices: int, model: ModelSpec, kv_tokens: int, longest_request: int
) -> Candidate:
    """As models were served before all of it: static batches, scores in memory, room reserved for the longest request.

    kv_tokens: of one replica, with as many heads of K and V as of queries.
    """
    return Candidate(
        mixed=shape,
        num_units=num_devices // shape.num_devices,
        policy="static",
        router="round_robin",
        max_num_seqs=max(1, min(Candidate().max_num_seqs - 1, kv_tokens // longest_request)),
        enable_prefix_caching=False,
        attention="materialized",
        num_kv_heads=model.num_q_heads if model.num_kv_heads != model.num_q_heads else None,
    )
