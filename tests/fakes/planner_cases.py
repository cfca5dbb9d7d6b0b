"""A small cluster with made-up step times, and a small load, for the planner's tests."""

from __future__ import annotations

from kvist.config.cluster_config import ClusterConfig, ReplicaGroupConfig, RouterConfig
from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.linear_step_time import LinearStepTime
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.planner.bounds import load_facts
from kvist.planner.candidate import Deployment
from kvist.planner.evaluation import PlanningProblem
from kvist.planner.plan_load import PlanLoad
from kvist.planner.service_level_objective import parse_objective
from kvist.workload.arrival_process import Gamma
from kvist.workload.length_distribution import Uniform
from kvist.workload.single_turn import Lengths, SingleTurn

STEP = LinearStepTime(per_step_s=0.01, per_token_s=1e-4, per_sequence_s=1e-4)
STEP_TIMES = {"mixed": STEP}


def cluster(*, num_replicas: int = 1, max_num_seqs: int = 16) -> ClusterConfig:
    group = ReplicaGroupConfig(
        name="mixed", count=num_replicas, kv_cache_tokens=65_536, max_num_batched_tokens=512, max_num_seqs=max_num_seqs
    )
    return ClusterConfig(groups=(group,), router=RouterConfig(policy="round_robin"))


def load(*, num_requests: int = 60, num_draws: int = 2) -> PlanLoad:
    shape = SingleTurn(num_requests, Gamma(1.0), (Lengths(1.0, Uniform(100, 300), Uniform(10, 30)),))
    return PlanLoad(name="test", draws=tuple(tuple(shape.records(seed, "test", 1.0)) for seed in range(num_draws)))


def problem(*, model: str = "llama-3.1-8b", device: str = "H100", slo: str = "ttft=400ms,tpot=30ms") -> PlanningProblem:
    """A catalogue model on a catalogue device under the small load, on hosts of 4 with a fast network."""
    spec = find_device(device)
    the_load = load(num_requests=40)
    return PlanningProblem(
        deployment=Deployment(
            model=model,
            device=spec,
            devices_per_node=4,
            network_gb_per_s=100.0,
            price_per_device_hour=spec.price_per_hour,
            objective=parse_objective(slo),
        ),
        model=find_model_spec(model),
        load=the_load,
        facts=load_facts(the_load),
    )
