"""What a candidate can reach at most, from step times alone: enough to leave out most of them without a simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvist.config.cluster_config import ClusterConfig, ReplicaGroupConfig
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork
from kvist.planner.plan_load import Draw, PlanLoad
from kvist.planner.service_level_objective import ServiceLevelObjective
from kvist.workload.trace_record import TextPart, count_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFacts:
    """Of a load: means, and the share of its prompts that must be computed however much is cached.

    chain_length, chain_pause_s: the longest chain of requests that follow each other from a first one, and the pauses
    in it, on average over the first ones; 1 and 0 where nobody follows.
    """

    mean_prompt_tokens: float
    mean_output_tokens: float
    computed_share: float
    prompt_lengths: tuple[int, ...]  # rising
    chain_length: float = 1.0
    chain_pause_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """max_rate_per_s: requests per second that no schedule exceeds; 0 where the objective cannot hold at any rate.

    prefill_share: of the time of devices at work, about what prompts take. why: in words, where the bound is 0.
    """

    max_rate_per_s: float
    prefill_share: float
    why: str = ""


def load_facts(load: PlanLoad) -> LoadFacts:
    lengths = load.lengths()
    chain_length, chain_pause_s = chains(load.draws[0])
    return LoadFacts(
        chain_length=chain_length,
        chain_pause_s=chain_pause_s,
        mean_prompt_tokens=sum(prompt for prompt, _ in lengths) / len(lengths),
        mean_output_tokens=sum(output for _, output in lengths) / len(lengths),
        computed_share=computed_share(load.draws[0]),
        prompt_lengths=tuple(sorted(prompt for prompt, _ in lengths)),
    )


def chains(records: Draw) -> tuple[float, float]:
    """Mean length of the longest chain from each first request, and the mean of its pauses."""
    depths: list[tuple[int, float, int]] = []  # requests so far, pauses so far, number of the first one
    longest: dict[int, tuple[int, float]] = {}
    for record in records:
        if record.after is None:
            depth = (1, 0.0, record.index)
        else:
            count, pause_s, first = depths[record.after]
            depth = (count + 1, pause_s + record.arrival_s, first)
        depths.append(depth)
        longest[depth[2]] = max(longest.get(depth[2], (0, 0.0)), depth[:2])
    return (
        sum(count for count, _ in longest.values()) / len(longest),
        sum(pause_s for _, pause_s in longest.values()) / len(longest),
    )


def computed_share(records: Draw) -> float:
    """Share of all prompt tokens that remains if every repeated text, and every answer, is found in a cache."""
    longest: dict[tuple[str, int], int] = {}
    for record in records:
        for part in record.prompt:
            if isinstance(part, TextPart):
                key = part.text_id, part.start
                longest[key] = max(longest.get(key, 0), part.num_tokens)
    # One token of each prompt is always computed, for its logits.
    num_computed = max(sum(longest.values()), len(records))
    return min(1.0, num_computed / max(sum(count_prompt_tokens(records)), 1))


def bound(
    config: ClusterConfig,
    step_times: Mapping[str, StepTimeModel],
    facts: LoadFacts,
    objective: ServiceLevelObjective,
) -> Bound:
    """Upper bound of the goodput of a placed cluster.

    A step with two kinds of work takes at least as long as with either, so a mixed replica is bound by the longer of
    its phases; a split cluster by the group that is the first to be full.
    """
    prefill_rate = decode_rate = mixed_limit = 0.0
    prefill_s = decode_s = 0.0
    why = ""
    for group in config.groups:
        model, num_pipes = step_times[group.name], group.count * group.pipeline_parallel_size
        own_prefill_s = _prefill_s(group, model, facts)
        own_decode_s = _decode_s(group, model, facts)
        if group.prefill_weight:
            prefill_rate += num_pipes / own_prefill_s
            prefill_s = max(prefill_s, own_prefill_s)
            why = why or _too_slow_to_begin(group, model, facts, objective)
        if group.decode_weight:
            decode_rate += num_pipes / own_decode_s
            decode_s = max(decode_s, own_decode_s)
            why = why or _too_slow_to_go_on(model, facts, objective)
        mixed_limit += num_pipes / max(
            own_prefill_s if group.prefill_weight else 0.0, own_decode_s if group.decode_weight else 0.0
        )
    if len(config.groups) > 1:
        prefill_devices = sum(group.count * group.num_devices for group in config.groups if not group.decode_weight)
        share = prefill_devices / config.num_devices
    else:
        share = prefill_s / (prefill_s + decode_s)
    limit = 0.0 if why else min(prefill_rate, decode_rate, mixed_limit)
    return Bound(max_rate_per_s=limit, prefill_share=share, why=why)


def _prefill_s(group: ReplicaGroupConfig, model: StepTimeModel, facts: LoadFacts) -> float:
    """Least time of a step per prompt: full steps, and of attention only what prompts of the mean length have."""
    num_tokens = group.max_num_batched_tokens
    length = max(1.0, facts.mean_prompt_tokens * facts.computed_share)
    num_prompts = max(1, math.floor(num_tokens / length))
    pairs = int(num_tokens * (min(length, num_tokens) + 1) / 2)
    work = StepWork(
        num_tokens=num_tokens,
        num_sequences=num_prompts,
        num_sampled=0,
        decode_context_tokens=0,
        prefill_pairs=pairs,
        prefill_context_tokens=num_tokens,
    )
    return model.predict_s(work) / num_tokens * length


def _decode_s(group: ReplicaGroupConfig, model: StepTimeModel, facts: LoadFacts) -> float:
    """Least time of a step per answer: the largest batch that there is room for, in the middle of its answers."""
    context = facts.mean_prompt_tokens + facts.mean_output_tokens / 2
    unshared = facts.mean_prompt_tokens * facts.computed_share + facts.mean_output_tokens / 2
    room = (group.kv_cache_tokens or 0) / max(unshared, 1.0)
    batch = max(1, min(group.max_num_seqs, group.max_num_batched_tokens, math.ceil(room)))
    return model.predict_s(_decode_work(batch, int(batch * context))) / batch * max(facts.mean_output_tokens - 1, 1e-9)


def _decode_work(batch: int, context_tokens: int) -> StepWork:
    return StepWork(
        num_tokens=batch,
        num_sequences=batch,
        num_sampled=batch,
        decode_context_tokens=context_tokens,
        prefill_pairs=0,
        prefill_context_tokens=0,
    )


def _too_slow_to_begin(
    group: ReplicaGroupConfig, model: StepTimeModel, facts: LoadFacts, objective: ServiceLevelObjective
) -> str:
    """Why too many prompts miss their first token even alone; empty if they do not. Loads with reuse are not judged."""
    if objective.ttft_s is None or facts.computed_share < 1.0:
        return ""
    length = _at_share(facts.prompt_lengths, objective.attainment)
    alone_s = _alone_s(length, group.max_num_batched_tokens, model)
    if alone_s <= objective.ttft_s:
        return ""
    return f"a prompt of {length} tokens takes {alone_s * 1e3:.0f} ms alone"


def _too_slow_to_go_on(model: StepTimeModel, facts: LoadFacts, objective: ServiceLevelObjective) -> str:
    if objective.tpot_s is None or facts.mean_output_tokens <= 1.0:
        return ""
    step_s = model.predict_s(_decode_work(1, facts.prompt_lengths[0]))
    return "" if step_s <= objective.tpot_s else f"a step for a single request takes {step_s * 1e3:.0f} ms"


def _alone_s(length: int, budget: int, model: StepTimeModel) -> float:
    """Time of a prompt that finds the replica empty, in chunks of the budget."""
    total_s, done = 0.0, 0
    while done < length:
        chunk = min(budget, length - done)
        total_s += model.predict_s(StepWork.of([(chunk, done)], num_sampled=int(done + chunk == length)))
        done += chunk
    return total_s


def _at_share(rising: Sequence[int], share: float) -> int:
    """The least length that all but 1 - `share` of the requests do not exceed."""
    return rising[min(len(rising) - 1, max(0, math.ceil(share * len(rising)) - 1))]
