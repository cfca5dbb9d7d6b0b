"""DistServe (OSDI'24): prefill and decode on devices of their own. Placements, goodput and queueing, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.costmodel.step_work import StepWork
from kvist.planner.bounds import load_facts
from kvist.planner.candidate import Candidate, Deployment, Shape
from kvist.planner.evaluation import Effort, Evaluation, Known, PlanningProblem, StepTimeOfGroup, evaluate, placed
from kvist.planner.operating_point import OperatingPoint, operate
from kvist.planner.plan_load import PlanLoad, draws_of_load
from kvist.planner.service_level_objective import ServiceLevelObjective, parse_objective
from kvist.repro.distserve_latency import SWIFT_TRANSFORMER, VLLM_2023, FittedLatencies
from kvist.repro.distserve_queueing import decode_limit_per_s, queueing_rows
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.workload.adapting import with_total_length
from kvist.workload.arrival_process import Gamma
from kvist.workload.length_distribution import LogNormal, Uniform
from kvist.workload.load_file import scenario_loads
from kvist.workload.single_turn import Lengths, SingleTurn

DEVICE = "A100-80GB-SXM"
SLOW_NETWORK_GB_PER_S = 25 / 8  # 25 Gb/s between hosts: pairs stay in one host (Alg. 2)
FULL = Effort(num_lifetimes=5.0, min_requests=1500, tolerance=0.03)
QUICK = Effort(num_lifetimes=2.0, min_requests=300, tolerance=0.05)
SEED = 20261130
OPT_TOKENS = 2048
QUICK_REQUESTS = 400
HOPEFUL = 0.85  # of the best goodput per device: a placement below is not looked at closely


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The best placement of a kind, by goodput per device, and all that were judged."""

    best: Evaluation
    judged: Sequence[Evaluation]

    def rival_of(self, candidate: Candidate) -> Evaluation:
        """The best of the others."""
        return max((each for each in self.judged if each.candidate != candidate), key=lambda each: each.rate_per_device)


# Lengths with the published means, 755 in and 200 out, and other tails than those of the load `sharegpt`.
SHORT_TAIL = Lengths(1.0, LogNormal(900, 640, 4, 1536), LogNormal(270, 180, 4, 400))
LONG_TAIL = Lengths(1.0, LogNormal(1240, 480, 4, 2000), LogNormal(300, 120, 4, 1024))


def run(setting: ReproSetting) -> ReproResult:
    effort = QUICK if setting.is_quick else FULL
    small, small_rows, small_plot = _opt_13b(setting, effort)
    rows = [
        *small_rows,
        *_opt_66b(setting, effort),
        *_motivation(setting, effort),
        *_llama_13b(setting, effort),
        *queueing_rows(is_quick=setting.is_quick),
    ]
    return ReproResult(
        name="distserve",
        title="DistServe: prefill and decode on devices of their own",
        setup=(
            f"Simulated: kvist's schedulers, caches and router on {DEVICE}, NVLink inside hosts, 25 Gb/s between them. "
            "Step times of OPT are those that DistServe's authors fitted to their engine and to the vLLM of 2023; of "
            "LLaMA-13B kvist's own, fitted to engines of today. Goodput: the largest rate at which 90% of requests "
            f"keep both targets. Seed {SEED}."
        ),
        executor="simulation",
        size=setting.size,
        repeats=1,
        rows=rows,
        plots=[small_plot],
        notes=[
            f"Looked at for OPT-13B: {', '.join(each.candidate.text for each in small.judged)}.",
            "Short runs flatter: a queue that grows is seen only after hundreds of requests. With runs of 160 requests "
            "pairs of 4 GPUs led for OPT-13B.",
            "Which placement is best for OPT-13B depends on the tail of the lengths, which the paper does not state: "
            "the published one is ahead with prompts up to 1,792 or 2,000 tokens and behind with prompts up to 1,536. "
            "In all three it is its single decoding GPU that is full.",
        ],
    )


def problem_of(
    model: str, load: PlanLoad, objective: ServiceLevelObjective, step_time_of: StepTimeOfGroup | None
) -> PlanningProblem:
    device = find_device(DEVICE)
    return PlanningProblem(
        deployment=Deployment(
            model=model,
            device=device,
            devices_per_node=8,
            network_gb_per_s=SLOW_NETWORK_GB_PER_S,
            price_per_device_hour=device.price_per_hour,
            objective=objective,
        ),
        model=find_model_spec(model),
        load=load,
        facts=load_facts(load),
        step_time_of=step_time_of,
    )


def best_placement(candidates: Sequence[Candidate], problem: PlanningProblem, effort: Effort) -> Placed:
    """By goodput per device. The search of one that is surely worse ends early: its goodput is then given too low."""
    judged: list[Evaluation] = []
    best_per_device = 0.0
    for candidate in candidates:
        least = HOPEFUL * best_per_device * candidate.num_devices
        found = evaluate(candidate, problem, effort, known=Known(min_rate_per_s=least))
        judged.append(found)
        best_per_device = max(best_per_device, found.rate_per_device)
    return Placed(best=max(judged, key=lambda each: each.rate_per_device), judged=judged)


def pairs(shapes: Sequence[Shape], max_devices: int) -> list[Candidate]:
    """One prefill and one decode replica in one host: Alg. 2 within a node."""
    return [
        pair(prefill, decode)
        for prefill, decode in product(shapes, repeat=2)
        if prefill.num_devices + decode.num_devices <= max_devices
    ]


def pair(prefill: Shape, decode: Shape) -> Candidate:
    """No prefix cache, as DistServe has none; nothing is shared in its loads."""
    return Candidate(
        prefill=prefill,
        decode=decode,
        policy="prefill_first",
        token_budget=2048,
        number_format="fp16",
        enable_prefix_caching=False,
        is_pinned=True,
    )


def colocated(shapes: Sequence[Shape], policy: str = "prefill_first") -> list[Candidate]:
    return [
        Candidate(mixed=shape, policy=policy, token_budget=2048, number_format="fp16", enable_prefix_caching=False)
        for shape in shapes
    ]


def shapes(ranks: Sequence[int], stages: Sequence[int]) -> list[Shape]:
    return [Shape(tensor_parallel_size=tp, pipeline_parallel_size=pp) for tp, pp in product(ranks, stages)]


def sharegpt(*, is_quick: bool) -> PlanLoad:
    """OPT takes 2,048 tokens, prompt and answer together."""
    load = draws_of_load(
        scenario_loads().load("sharegpt"), num_draws=1, num_requests=QUICK_REQUESTS if is_quick else None
    )
    return replace(load, draws=tuple(with_total_length(draw, OPT_TOKENS) for draw in load.draws))


def _opt_13b(setting: ReproSetting, effort: Effort) -> tuple[Placed, list[ReproRow], BarPlot]:
    setting.say("placements of OPT-13B on 4 devices")
    objective = parse_objective("ttft=200ms,tpot=100ms,attainment=0.9")
    load = sharegpt(is_quick=setting.is_quick)
    problem = problem_of("opt-13b", load, objective, FittedLatencies(SWIFT_TRANSFORMER))
    published = _published_13b()
    ranks, stages = ((1, 2), (1,)) if setting.is_quick else ((1, 2, 4), (1, 2))
    others = [each for each in pairs(shapes(ranks, stages), 4) if each != published]
    split = best_placement([published, *others], problem, effort)
    ours = split.judged[0]
    alone = best_placement(
        colocated(shapes((1, 2, 4), (1,))),
        problem_of("opt-13b", load, objective, FittedLatencies(VLLM_2023)),
        effort,
    )
    rival = split.rival_of(published)
    decode = placed(published, problem)
    rows = [
        ReproRow(
            name="OPT-13B on 4 GPUs: the published placement is the best",
            setup=(
                "ShareGPT-like lengths (755 in, 200 out, up to 1,792 and 512), TTFT 200 ms, TPOT 100 ms; goodput per "
                f"GPU, baseline: the best other placement, {_name(rival)}"
            ),
            measured=ours.rate_per_device,
            baseline=rival.rate_per_device,
            unit="requests/s",
            published="prefill TP2 PP1 + decode TP1 PP1",
            why=f"the best here: {_name(split.best)}; goodputs are known to {effort.tolerance:.0%}",
        ),
        *([] if setting.is_quick else _tail_rows(setting, effort, [published, *others])),
        ReproRow(
            name="OPT-13B: requests/s that one GPU can decode",
            setup="goodput of the published placement; baseline: DistServe's decode formula with the KV pool full",
            measured=ours.rate_per_s,
            baseline=decode_limit_per_s(decode[1]["decode"], decode[0].groups[1].kv_cache_tokens or 0, load),
            unit="requests/s",
            published="the formula",
            why=(
                "the room for KV on one GPU is what limits the published placement; a pair of four GPUs has enough, "
                "and is ahead once prefill on two GPUs can serve more than 4/3 of that, which its long prompts decide"
            ),
        ),
        ReproRow(
            name="OPT-13B: goodput per GPU",
            setup="the same; baseline: colocated, vLLM of 2023, its best placement",
            measured=ours.rate_per_device,
            baseline=alone.best.rate_per_device,
            unit="requests/s",
            published="1.56 requests/s per GPU",
            why=(
                f"{ours.rate_per_device / 1.56 - 1:+.0%} against the published figure: lengths are drawn from a "
                "log-normal law, not ShareGPT's own; both targets count together, not each for itself; prompts are "
                f"batched up to 2048 tokens, not 512. Colocated: {alone.best.candidate.text.split(',')[0]}"
            ),
        ),
    ]
    plot = BarPlot(
        title="OPT-13B: goodput per GPU by placement (0: given up as worse)",
        unit="requests/s",
        groups=[each.candidate.text.split(",")[0] for each in split.judged],
        values={"split": [each.rate_per_device for each in split.judged]},
    )
    return split, rows, plot


def _tail_rows(setting: ReproSetting, effort: Effort, space: Sequence[Candidate]) -> list[ReproRow]:
    """The same means with other tails: how much of the answer they decide."""
    rows = []
    for lengths, about in ((SHORT_TAIL, "up to 1,536 in, 400 out"), (LONG_TAIL, "up to 2,000 in, 1,024 out")):
        setting.say(f"placements of OPT-13B, lengths {about}")
        objective = parse_objective("ttft=200ms,tpot=100ms,attainment=0.9")
        problem = problem_of(
            "opt-13b", _opt_load(lengths, is_quick=setting.is_quick), objective, FittedLatencies(SWIFT_TRANSFORMER)
        )
        found = best_placement(space, problem, effort)
        rival = found.rival_of(space[0])
        rows.append(
            ReproRow(
                name=f"OPT-13B on 4 GPUs, lengths {about}",
                setup=f"the same means; goodput per GPU of the published placement, baseline: {_name(rival)}",
                measured=found.judged[0].rate_per_device,
                baseline=rival.rate_per_device,
                unit="requests/s",
                published="prefill TP2 PP1 + decode TP1 PP1",
            )
        )
    return rows


def _opt_load(lengths: Lengths, *, is_quick: bool) -> PlanLoad:
    shape = SingleTurn(QUICK_REQUESTS if is_quick else FULL.min_requests, Gamma(1.0), (lengths,))
    records = with_total_length(shape.records(SEED, "sharegpt", 1.0), OPT_TOKENS)
    return PlanLoad(name="sharegpt", draws=(records,), seed=SEED)


def _published_13b() -> Candidate:
    return pair(Shape(tensor_parallel_size=2), Shape(tensor_parallel_size=1))


def _name(evaluation: Evaluation) -> str:
    """The placement alone."""
    return evaluation.candidate.text.split(",")[0]


def _opt_66b(setting: ReproSetting, effort: Effort) -> list[ReproRow]:
    setting.say("placements of OPT-66B on 8 devices")
    load = sharegpt(is_quick=setting.is_quick)
    objective = parse_objective("ttft=400ms,tpot=100ms,attainment=0.9")
    split_problem = problem_of("opt-66b", load, objective, FittedLatencies(SWIFT_TRANSFORMER))
    published = pair(Shape(tensor_parallel_size=4), Shape(tensor_parallel_size=2, pipeline_parallel_size=2))
    space = [published] if setting.is_quick else pairs(shapes((2, 4), (1, 2)), 8)
    split = best_placement(space, split_problem, effort)
    theirs = next(each for each in split.judged if each.candidate == published)
    alone = best_placement(
        colocated(shapes((4,), (1,))), problem_of("opt-66b", load, objective, FittedLatencies(VLLM_2023)), effort
    )
    return [
        ReproRow(
            name="OPT-66B: goodput per GPU",
            setup="ShareGPT-like lengths, TTFT 400 ms, TPOT 100 ms; baseline: colocated TP4, vLLM of 2023",
            measured=split.best.rate_per_device,
            baseline=alone.best.rate_per_device,
            unit="requests/s",
            published="prefill TP4 + decode TP2 PP2, 8 GPUs",
            why=(
                f"best here: {split.best.candidate.text.split(',')[0]}; the published placement has "
                f"{theirs.rate_per_device / max(split.best.rate_per_device, 1e-9):.0%} of its goodput"
                + (", the only one that a quick run looks at" if setting.is_quick else "")
                + ("" if alone.best.rate_per_s else f". Colocated keeps the targets at no rate: {alone.best.why}")
            ),
        )
    ]


def _fixed_load(num_prompt_tokens: int, num_output_tokens: int, *, is_quick: bool) -> PlanLoad:
    lengths = Lengths(1.0, Uniform(num_prompt_tokens, num_prompt_tokens), Uniform(num_output_tokens, num_output_tokens))
    shape = SingleTurn(QUICK_REQUESTS if is_quick else 3000, Gamma(1.0), (lengths,))
    name = f"{num_prompt_tokens} in, {num_output_tokens} out"
    return PlanLoad(name=name, draws=(shape.records(SEED, name, 1.0),))


def _motivation(setting: ReproSetting, effort: Effort) -> list[ReproRow]:
    """The figure that the paper begins with."""
    setting.say("one device colocated, two for prefill and one for decode")
    objective = parse_objective("ttft=400ms,tpot=40ms,attainment=0.9")
    whole = _fixed_load(512, 64, is_quick=setting.is_quick)
    ours, theirs = FittedLatencies(SWIFT_TRANSFORMER), FittedLatencies(VLLM_2023)
    one = Shape(tensor_parallel_size=1)
    [alone] = colocated([one])
    split_pair = replace(pair(one, one), prefill=replace(one, count=2))
    prompts = _fixed_load(512, 1, is_quick=setting.is_quick)

    def prompt_s(latencies: FittedLatencies) -> float:
        return latencies.of("opt-13b").predict_s(StepWork.of([(512, 0)], num_sampled=1))

    def rate_of(candidate: Candidate, load: PlanLoad, latencies: FittedLatencies) -> Evaluation:
        return evaluate(candidate, problem_of("opt-13b", load, objective, latencies), effort)

    split = rate_of(split_pair, whole, ours)
    vllm, same = rate_of(alone, whole, theirs), rate_of(alone, whole, ours)
    setup = "13B, 512 tokens in, 64 out, TTFT 400 ms, TPOT 40 ms"
    return [
        ReproRow(
            name="one GPU, both phases",
            setup=f"{setup}; step times of the vLLM of 2023; baseline: with DistServe's",
            measured=vllm.rate_per_s,
            baseline=same.rate_per_s,
            unit="requests/s",
            published="1.6 requests/s",
            why=(
                f"a step with a prompt takes {prompt_s(theirs) * 1e3:.0f} ms, and stalls every stream that long: the "
                "target of 40 ms allows few of them; the engine of the figure is not known to us"
            ),
        ),
        ReproRow(
            name="one GPU, prefill only",
            setup=f"{setup}, DistServe's step times",
            measured=rate_of(alone, prompts, ours).rate_per_s,
            unit="requests/s",
            published="5.6 requests/s",
            why=(
                f"M/D/1: a prompt takes {prompt_s(ours) * 1e3:.0f} ms by the step times that DistServe's authors "
                f"fitted, so one GPU computes up to {1.0 / prompt_s(ours):.1f} a second; 5.6 is what prompts of about "
                "120 ms allow"
            ),
        ),
        ReproRow(
            name="2 prefill + 1 decode GPUs, per GPU",
            setup=f"{setup}; DistServe's step times; baseline: one GPU for both phases, the vLLM of 2023",
            measured=split.rate_per_device,
            baseline=vllm.rate_per_s,
            unit="requests/s",
            published="2.1x (3.3 against 1.6 requests/s)",
            brief="see LLaMA-13B",
            why=(
                f"with the same step times for both it is {split.rate_per_device / max(same.rate_per_s, 1e-9):.2f}x: "
                "the rest is the engine"
            ),
        ),
    ]


def _llama_13b(setting: ReproSetting, effort: Effort) -> list[ReproRow]:
    """The brief's claim, on equal numbers of devices."""
    setting.say("LLaMA-13B on 3 devices, split and colocated")
    objective = parse_objective("ttft=400ms,tpot=40ms,attainment=0.9")
    load = _fixed_load(512, 64, is_quick=setting.is_quick)
    problem = problem_of("llama-13b", load, objective, None)
    one = Shape(tensor_parallel_size=1)
    split = evaluate(replace(pair(one, one), prefill=replace(one, count=2)), problem, effort)
    rows = []
    for policy, about in (("prefill_first", "prompts whole"), ("chunked_prefill", "chunks of 512 tokens")):
        base = replace(colocated([one], policy)[0], num_units=3)
        if policy == "chunked_prefill":
            base = replace(base, token_budget=512)
        alone = evaluate(base, problem, effort)
        rate = 0.9 * min(alone.rate_per_s, split.rate_per_s)
        if rate <= 0.0:
            continue
        ours, theirs = _operate(split.candidate, problem, rate), _operate(base, problem, rate)
        setup = f"3 GPUs each, 512 in, 64 out; baseline: 3 colocated replicas, {about}"
        for name, brief, mine, other in (
            ("mean TTFT", "2.1x lower; in a table -60%", ours.ttft.mean, theirs.ttft.mean),
            ("mean TPOT", "1.5x lower; in a table -30%", ours.tpot.mean, theirs.tpot.mean),
        ):
            if mine is not None and other is not None:
                rows.append(
                    ReproRow(
                        name=f"LLaMA-13B, {name}, against {about}",
                        setup=f"{setup}, {rate:.1f} requests/s",
                        measured=mine * 1e3,
                        baseline=other * 1e3,
                        unit="ms",
                        published="not in the paper",
                        brief=brief,
                        is_change=True,
                    )
                )
        rows.append(
            ReproRow(
                name=f"LLaMA-13B, goodput, against {about}",
                setup=f"{setup}, TTFT 400 ms, TPOT 40 ms",
                measured=split.rate_per_s,
                baseline=alone.rate_per_s,
                unit="requests/s",
                published="not in the paper",
                brief="1.8x, +80%",
            )
        )
    return rows


def _operate(candidate: Candidate, problem: PlanningProblem, rate_per_s: float) -> OperatingPoint:
    config, step_times = placed(candidate, problem)
    return operate(config, step_times, problem.load, problem.deployment.objective, rate_per_s)
