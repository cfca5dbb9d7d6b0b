"""A small cluster with made-up step times, and a small load, for the planner's tests."""

from __future__ import annotations

from kvist.config.cluster_config import ClusterConfig, ReplicaGroupConfig, RouterConfig
from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.linear_step_time import LinearStepTime
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.costmodel.profile_table import LAYOUT_VERSION, ProfiledEngine, ProfilePoint, ProfileTable
from kvist.planner.bounds import load_facts
from kvist.planner.candidate import Deployment
from kvist.planner.evaluation import PlanningProblem
from kvist.planner.measured_host import MeasuredHost
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


def profile_table(model: str = "smollm2-135m") -> ProfileTable:
    """Of a made-up CPU whose steps take 8 ms and 0.3 ms a token, measured up to 1,024 tokens and 64 requests."""
    engine = ProfiledEngine(
        model_spec=find_model_spec(model),
        executor="reference",
        flags=["--num-threads=2"],
        kv_cache_dtype="float32",
        kv_bytes_per_token=46_080,
        block_size=16,
        free_memory_bytes=16 << 30,
    )
    return ProfileTable(
        layout_version=LAYOUT_VERSION,
        model=model,
        machine={"cpu": "a CPU", "num_cores_granted": "2"},
        points=[ProfilePoint(num_sequences=64, num_new_tokens=1, num_context_tokens=64, seconds=0.03)],
        knots=[1, 1024],
        knot_s=[0.008, 0.3],
        sampled_s=2e-4,
        decode_key_s=2e-6,
        prefill_key_s=3e-6,
        prefill_pair_s=2e-7,
        host_s=2e-4,
        host_sequence_s=2e-6,
        host_token_s=1e-6,
        error=0.05,
        drift=0.2,
        engine=engine,
    )


def measured_host(profile: str = "profile.json", *, max_kv_tokens: int = 65_536) -> MeasuredHost:
    table = profile_table()
    assert table.engine is not None
    return MeasuredHost(
        profile=profile, table=table, engine=table.engine, memory_bytes=16 << 30, max_kv_tokens=max_kv_tokens
    )


def host_problem(*, slo: str = "ttft=1s,tpot=60ms", profiles: tuple[str, ...] = ("profile.json",)) -> PlanningProblem:
    """The small load on hosts like a measured one, with a network of 10 Gb/s."""
    hosts = {name: measured_host(name) for name in profiles}
    host = next(iter(hosts.values()))
    the_load = load(num_requests=40)
    return PlanningProblem(
        deployment=Deployment(
            model=host.table.model,
            device=host.device(network_gb_per_s=1.25, price_per_hour=0.0),
            devices_per_node=1,
            network_gb_per_s=1.25,
            price_per_device_hour=0.0,
            objective=parse_objective(slo),
        ),
        model=host.engine.model_spec,
        load=the_load,
        facts=load_facts(the_load),
        hosts=hosts,
    )
