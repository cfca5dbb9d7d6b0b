"""Scenarios with their loads and objectives, and what the selection guide of the brief recommends for each.

The brief is the survey of inference papers that this engine answers; its guide is where advice starts from, not where
it has to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvist.planner.advisor import Advice

TENSOR_PARALLELISM = "tensor parallelism"
LARGE_PARAMETERS, MEDIUM_PARAMETERS = 30e9, 7e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """objective: as `--slo` takes it. first_choice: the guide's words; techniques: the same by their names here."""

    name: str
    load: str
    objective: str
    num_devices: int
    first_choice: str
    techniques: tuple[str, ...]


_CHAT = ("DistServe + PagedAttention", ("disaggregation (1:1)", "PagedAttention"))
_LONG = ("SARATHI + FlashAttention", ("chunked prefill (2048)", "FlashAttention"))
_TURNS = ("SGLang + continuous batching", ("prefix caching", "cache-aware routing", "continuous batching"))
_LARGE = ("Mooncake + tensor parallelism", ("KV-centric cluster", "tensor parallelism"))

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="chat", load="service_chat", objective="ttft=500ms,tpot=50ms,attainment=0.9", num_devices=4,
            first_choice=_CHAT[0], techniques=_CHAT[1],
        ),
        Scenario(
            name="rag", load="service_rag", objective="ttft=1000ms,tpot=50ms,attainment=0.9", num_devices=4,
            first_choice=_LONG[0], techniques=_LONG[1],
        ),
        Scenario(
            name="agent", load="service_agent", objective="ttft=1000ms,tpot=50ms,attainment=0.9", num_devices=4,
            first_choice=_LONG[0], techniques=_LONG[1],
        ),
        Scenario(
            name="long-prompt", load="service_long_prompt", objective="ttft=4000ms,tpot=60ms,attainment=0.9",
            num_devices=4, first_choice=_LONG[0], techniques=_LONG[1],
        ),
        Scenario(
            name="multi-turn", load="service_multi_turn", objective="ttft=500ms,tpot=50ms,attainment=0.9",
            num_devices=4, first_choice=_TURNS[0], techniques=_TURNS[1],
        ),
        Scenario(
            name="large-cluster", load="mooncake_conversation", objective="ttft=5000ms,tpot=100ms,attainment=0.9",
            num_devices=32, first_choice=_LARGE[0], techniques=_LARGE[1],
        ),
    )
}  # fmt: skip


def size_choice(num_parameters: int) -> tuple[str, tuple[str, ...]]:
    """What the guide says for a model of that size: in words, and by the names of techniques."""
    if num_parameters > LARGE_PARAMETERS:
        names = ("disaggregation (1:1)", "tensor parallelism", "PagedAttention")
        return "large model (over 30B): DistServe + tensor parallelism + PagedAttention", names
    if num_parameters >= MEDIUM_PARAMETERS:
        names = ("FlashAttention", "PagedAttention", "continuous batching")
        return "medium model (7B to 30B): FlashAttention + PagedAttention + continuous batching", names
    return "small model (under 7B): FlashAttention + PagedAttention", ("FlashAttention", "PagedAttention")


def compared_with_guide(advice: Advice, recommended: Sequence[str]) -> list[str]:
    """Where the simulation agrees with the guide and where not, a sentence each, with the reason."""
    taken = {_family(each.technique.name): each for each in advice.taken}
    refused = {_family(each.technique.name): each for each in advice.refused}
    lines = []
    for name in dict.fromkeys(map(_family, recommended)):
        if name in taken:
            gain = taken[name].gain
            if gain is None or gain > 0.0:
                lines.append(f"agrees with the guide on {name}: {_gain(gain)}")
            else:
                lines.append(
                    f"the guide names {name}: by itself it changes what can be served by {gain:+.0%} where it is "
                    "taken, before what comes after it"
                )
        elif name == TENSOR_PARALLELISM and _ranks(advice) > 1:
            lines.append(f"agrees with the guide on {name}: a replica needs {_ranks(advice)} devices from the start")
        elif name in refused:
            lines.append(f"disagrees with the guide on {name}: it {refused[name].why}")
        else:
            lines.append(f"the guide names {name}; it does not apply here (or is there from the start)")
    families = set(map(_family, recommended))
    lines += [
        f"beyond the guide: {each.technique.name}, {each.why}"
        for each in advice.taken
        if each.stage is not None and _family(each.technique.name) not in families
    ]
    return lines


def _ranks(advice: Advice) -> int:
    """Devices that share each operation in the baseline."""
    shape = advice.baseline.candidate.mixed
    return 1 if shape is None else shape.tensor_parallel_size


def _family(name: str) -> str:
    """A technique without its setting."""
    return name.split(" (")[0]


def _gain(gain: float | None) -> str:
    return "its gain cannot be told" if gain is None else f"gain {gain:+.0%}"
