"""Small clusters and loads for tests of the cluster and its simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvist.cluster.cluster_request import ClusterRequest, Placement
from kvist.cluster.cluster_state import ReplicaState
from kvist.cluster.global_scheduler import GlobalScheduler
from kvist.cluster.predictions import Predictor
from kvist.cluster.replica_handle import ReplicaSpec
from kvist.cluster.tier_index import TierIndex, TierSizes
from kvist.config.cluster_config import (
    ClusterCacheConfig,
    ClusterConfig,
    LinksConfig,
    ReplicaGroupConfig,
    RouterConfig,
)
from kvist.core.request import PUBLIC_DOMAIN, RequestId, pack_token_ids
from kvist.costmodel.linear_step_time import LinearStepTime
from kvist.kvcache.kv_events import BlockStored
from kvist.kvcache.token_blocks import TOKEN_BYTES
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord

BLOCK_SIZE = 16
STEP_TIME = LinearStepTime(
    per_step_s=0.01, per_token_s=1e-4, per_sequence_s=2e-4, per_decode_key_s=1e-6, per_prefill_pair_s=1e-8
)


def group(name: str = "mixed", count: int = 2, **fields: Any) -> ReplicaGroupConfig:
    sizes: dict[str, Any] = {
        "kv_cache_tokens": 4096, "max_num_batched_tokens": 256, "max_num_seqs": 16, "max_model_len": 2048,
    }  # fmt: skip
    return ReplicaGroupConfig(name=name, count=count, **{**sizes, **fields})


def split_groups(num_prefill: int = 2, num_decode: int = 2, **fields: Any) -> tuple[ReplicaGroupConfig, ...]:
    return (
        group("prefill", num_prefill, decode_weight=0.0, **fields),
        group("decode", num_decode, prefill_weight=0.0, **fields),
    )


def cluster(*groups: ReplicaGroupConfig, **fields: Any) -> ClusterConfig:
    """A small cluster on one-device hosts, in checking mode. Links of 1 GB/s, 100 kB of KV a token."""
    config = ClusterConfig(
        groups=groups or (group(),),
        cache=ClusterCacheConfig(block_size=BLOCK_SIZE, kv_bytes_per_token=100_000),
        links=LinksConfig(devices_per_node=1, intra_node_gb_per_s=4.0, inter_node_gb_per_s=1.0, host_gb_per_s=2.0),
        router=RouterConfig(policy="kv_centric"),
        check_invariants=True,
    )
    return replace(config, **fields)


def chats(num_sessions: int = 10, turns: int = 3, *, gap_s: float = 0.05) -> list[TraceRecord]:
    """Conversations over one shared prefix, each turn 0.2 s after the last answer."""
    records: list[TraceRecord] = []
    for session in range(num_sessions):
        prompt: tuple[TextPart | AnswerPart, ...] = (TextPart("system", 0, 70),)
        for turn in range(turns):
            index = len(records)
            prompt = (*prompt, TextPart(f"{session}/{turn}", 0, 40 + (session * 37 + turn * 11) % 90))
            records.append(
                TraceRecord(
                    index=index,
                    arrival_s=session * gap_s if turn == 0 else 0.2,
                    prompt=prompt,
                    num_output_tokens=1 + (session * 13 + turn * 29) % 60,
                    after=None if turn == 0 else index - 1,
                    session_id=f"s{session}",
                )
            )
            prompt = (*prompt, AnswerPart(index))
    return records


def router(num_replicas: int = 4, *, roles: str | None = None, **fields: Any) -> GlobalScheduler:
    """A global scheduler over equal replicas; roles: a letter p, d or m for each."""
    states = [
        ReplicaState(
            ReplicaSpec(
                replica_id=number,
                node=number,
                kv_cache_tokens=4096,
                max_num_batched_tokens=256,
                max_num_seqs=16,
                num_stages=1,
                step_time=STEP_TIME,
            ),
            0.0 if role == "d" else 1.0,
            0.0 if role == "p" else 1.0,
        )
        for number, role in enumerate(roles or "m" * num_replicas)
    ]
    links = LinksConfig(devices_per_node=1, inter_node_gb_per_s=1.0)
    return GlobalScheduler(
        RouterConfig(**fields),
        states,
        TierIndex([TierSizes(host_blocks=0, disk_blocks=0)] * len(states), shared_blocks=0),
        Predictor(links, 100_000),
        BLOCK_SIZE,
    )


def cluster_request(name: str, tokens: list[int] | int = 100, *, max_tokens: int = 20, **fields: Any) -> ClusterRequest:
    """A request. An int prompt gives so many tokens that no other request has."""
    if isinstance(tokens, int):
        base = int.from_bytes(name.encode(), "big") % 100_003 * 1_000
        tokens = list(range(base, base + tokens))
    return ClusterRequest(
        request_id=RequestId(name),
        prompt_token_ids=pack_token_ids(tokens),
        num_prompt_tokens=len(tokens),
        max_tokens=max_tokens,
        **fields,
    )


def hold(scheduler: GlobalScheduler, replica_id: int, request: ClusterRequest, *, first_block: int = 0) -> None:
    """Let a replica have the whole blocks of the request's prompt."""
    num_blocks = request.num_prompt_tokens // BLOCK_SIZE
    tokens = request.prompt_token_ids[: num_blocks * BLOCK_SIZE * TOKEN_BYTES]
    block_ids = list(range(first_block, first_block + num_blocks))
    scheduler.note_kv_events(replica_id, [BlockStored(PUBLIC_DOMAIN, None, tokens, block_ids)])


def placed(scheduler: GlobalScheduler, request: ClusterRequest, now: float = 0.0) -> Placement:
    decision = scheduler.place(request, now)
    assert isinstance(decision, Placement), decision
    return decision
