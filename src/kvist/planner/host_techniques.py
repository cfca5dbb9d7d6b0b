"""Techniques on measured hosts: what a profile has step times for, and this version's engine serves.

FlashAttention and grouped queries are in the kernels that were measured, so no setup is without them. Neither are steps
larger than the measured ones, nor number formats without a profile of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from kvist.core.errors import ConfigError
from kvist.planner.candidate import MAX_NUM_SEQS, SLO_BUDGET, Candidate
from kvist.planner.host_space import ONE_HOST, POLICY_BUDGETS, HostLimits, pool_sizes
from kvist.planner.measured_host import MeasuredHost
from kvist.planner.service_level_objective import ServiceLevelObjective
from kvist.planner.techniques import CHOICES, MUST_HAVES, Complexity, Effect, Surroundings, Technique, Toolbox

CHUNKS = (256, 64)
ALL_STAGES = (Effect.TTFT, Effect.TPOT, Effect.GOODPUT)
OF_CLUSTERS = ("cache-aware routing", "KV-centric cluster", *(f"disaggregation ({x})" for x in ("1:1", "3:1", "1:3")))


def host_toolbox(
    hosts: Mapping[str, MeasuredHost], objective: ServiceLevelObjective, *, num_hosts: int, longest_request: int
) -> Toolbox:
    """Starts on hosts of the first profile. Raises ConfigError if it has no room, or another is of another model."""
    first, *others = hosts.values()
    one = HostLimits(max_hosts=1, max_hosts_per_unit=1)
    pools = {name: pool_sizes(host, one, longest_request) for name, host in hosts.items()}
    if not pools[first.profile]:
        raise ConfigError(
            f"a request of {longest_request} tokens does not fit the memory of a host, which has room for "
            f"{first.max_kv_tokens} tokens of KV: give --scale-lengths, --num-prompts or --memory-gb"
        )
    pool = pools[first.profile][-1]
    baseline = Candidate(
        mixed=ONE_HOST,
        num_units=num_hosts,
        policy="static",
        token_budget=_largest_budget(first),
        router="round_robin",
        max_num_seqs=max(1, min(_most_sequences(first) - 1, pool // longest_request)),
        enable_prefix_caching=False,
        kv_cache_tokens=pool,
        profile=first.profile,
    )
    known = {technique.name: technique for technique in (*MUST_HAVES, *CHOICES)}
    own = [
        *(_chunks(budget) for budget in CHUNKS if budget < baseline.token_budget),
        *([_seconds()] if objective.tpot_s is not None else []),
        *(_other_profile(first, host, pools[host.profile][-1]) for host in others if pools[host.profile]),
    ]
    return Toolbox(
        baseline=baseline,
        must_haves=(
            Technique(name="PagedAttention", apply=partial(_paged, _most_sequences(first)), complexity=Complexity.LOW),
            known["continuous batching"],
        ),
        choices=(known["prefix caching"], *own, *(known[name] for name in OF_CLUSTERS)),
    )


def _largest_budget(host: MeasuredHost) -> int:
    return min(max(POLICY_BUDGETS["prefill_first"]), host.table.max_step_tokens)


def _most_sequences(host: MeasuredHost) -> int:
    """That were measured in one step, and may be in one."""
    return max(1, min(host.table.max_sequences, _largest_budget(host), MAX_NUM_SEQS))


def _paged(most: int, candidate: Candidate, around: Surroundings) -> Candidate | None:
    return None if candidate.max_num_seqs >= most else replace(candidate, max_num_seqs=most)


def _chunks(budget: int) -> Technique:
    return Technique(
        name=f"chunked prefill ({budget})", apply=partial(_chunked, budget), complexity=Complexity.LOW,
        effects=ALL_STAGES,
    )  # fmt: skip


def _chunked(budget: int, candidate: Candidate, around: Surroundings) -> Candidate | None:
    if candidate.is_disaggregated or (candidate.policy, candidate.token_budget) == ("chunked_prefill", budget):
        return None
    sequences = min(candidate.max_num_seqs, budget)
    return replace(candidate, policy="chunked_prefill", token_budget=budget, max_num_seqs=sequences)


def _seconds() -> Technique:
    return Technique(name="budget in seconds", apply=_budget_in_seconds, complexity=Complexity.LOW, effects=ALL_STAGES)


def _budget_in_seconds(candidate: Candidate, around: Surroundings) -> Candidate | None:
    if candidate.is_disaggregated or candidate.policy == SLO_BUDGET:
        return None
    return replace(candidate, policy=SLO_BUDGET)


def _size(host: MeasuredHost) -> tuple[int, int, int]:
    spec = host.engine.model_spec
    return spec.num_layers, spec.hidden_size, spec.num_q_heads


def _other_profile(first: MeasuredHost, other: MeasuredHost, pool: int) -> Technique:
    """The same model as it was measured in another number format."""
    if _size(first) != _size(other):
        raise ConfigError(
            f"--profile {other.profile} is of another model than {first.profile}: advice is about one model, in as "
            "many number formats as there are profiles; kvist plan compares models"
        )
    return Technique(
        name=f"quantization ({other.profile})",
        apply=partial(_measured_as, other.profile, pool, _largest_budget(other), _most_sequences(other)),
        complexity=Complexity.MEDIUM,
        effects=ALL_STAGES,
        accuracy_risk="that of its number format; measure it on your own tasks",
    )


def _measured_as(
    profile: str, pool: int, budget: int, sequences: int, candidate: Candidate, around: Surroundings
) -> Candidate | None:
    if candidate.profile == profile:
        return None
    return replace(
        candidate,
        profile=profile,
        kv_cache_tokens=pool,
        token_budget=min(candidate.token_budget, budget),
        max_num_seqs=min(candidate.max_num_seqs, sequences),
    )
