"""What a step may hold and who goes first."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.option import option

POLICIES = ("static", "prefill_first", "decode_first", "chunked_prefill", "split_fuse", "slo_budget")
QUEUE_ORDERS = ("auto", "fcfs", "priority", "lpm", "shortest_prefill_first", "slack")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    policy: str = option("chunked_prefill", help="how a step's token budget is filled", choices=POLICIES)
    queue_order: str = option(
        "auto",
        help="order of the waiting queue; lpm: longest prefix match first, priority: lower number first, slack: who "
        "must begin first for its time to first token; auto: slack with slo_budget, else fcfs",
        aliases=("--scheduling-policy", "--schedule-policy"),
        choices=QUEUE_ORDERS,
    )
    max_num_batched_tokens: int | None = option(
        None,
        help="token budget of a step; default: the largest multiple of 16 whose measured step takes <= 100 ms",
        aliases=("--chunked-prefill-size", "--max-prefill-tokens", "-b", "--batch-size", "-ub", "--ubatch-size"),
        low=16,
        unit="tokens",
    )
    max_num_seqs: int = option(
        128, help="most requests running at once", aliases=("--max-running-requests", "-np", "--parallel"), low=1
    )
    long_prefill_token_threshold: int = option(
        0, help="longest chunk of one prompt in a step; 0: the whole budget", low=0, unit="tokens"
    )
    max_num_queued_reqs: int = option(
        1024, help="most requests waiting; more are refused with 429", aliases=("--max-queued-requests",), low=1
    )
    max_num_queued_tokens: int | None = option(
        None, help="most prompt tokens waiting; more are refused with 429", low=1, unit="tokens"
    )
    ageing_s: float = option(
        30.0, help="seconds of waiting that raise a request's place by one priority level", low=0.001, unit="s"
    )
    default_ttft_ms: float | None = option(
        None, help="slo_budget: time to first token of requests that bring no target; default: none", low=1, unit="ms"
    )
    default_tpot_ms: float = option(
        100.0, help="slo_budget: mean time between tokens of requests that bring no target", low=1, unit="ms"
    )
    max_steps_in_flight: int = option(1, help="steps open at once: 1 on a CPU, 2 on a GPU", low=1, high=2)
    check_invariants: bool = option(False, help="check the whole state after each step (slow; on in tests)")
