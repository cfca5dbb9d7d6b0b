"""All candidates on measured hosts: policies, token budgets, batch sizes, pools, prefix caching, roles of hosts.

A host runs one replica. What was not measured is no candidate: neither steps larger than the profile's, nor number
formats of which there is no profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from kvist.core.errors import ConfigError
from kvist.planner.candidate import Candidate, Shape
from kvist.planner.measured_host import MeasuredHost
from kvist.planner.search_space import mixed_units, split_ratios

POLICY_BUDGETS = {
    "chunked_prefill": (64, 128, 256, 512, 1024),
    "split_fuse": (128, 256, 512),
    "prefill_first": (1024,),
    "decode_first": (1024,),
    "slo_budget": (256, 1024),
}
SPLIT_POLICY_BUDGETS = {"prefill_first": (1024,), "chunked_prefill": (256,)}
QUICK_POLICY_BUDGETS = {"chunked_prefill": (256, 1024), "slo_budget": (1024,)}
MOST_SEQUENCES = (4, 8, 16, 32, 64)
QUICK_SEQUENCES = (8, 32)
ONE_HOST = Shape(tensor_parallel_size=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """max_hosts: of all units together. pool_tokens: sizes to choose from; none: what memory gives.

    has_reuse: whether the load repeats anything; if it does not, prefix caching on and off are one candidate.
    """

    max_hosts: int
    max_hosts_per_unit: int
    splits: bool = True
    pool_tokens: Sequence[int] = ()
    has_reuse: bool = True
    is_quick: bool = False


def host_candidates(hosts: Mapping[str, MeasuredHost], limits: HostLimits, *, longest_request: int) -> list[Candidate]:
    """Units, as many of each as there are hosts for, routers not chosen.

    longest_request: tokens that a pool must hold. Raises ConfigError if none does.
    """
    found: list[Candidate] = []
    for host in hosts.values():
        sizes = pool_sizes(host, limits, longest_request)
        found += [replace(plain, kv_cache_tokens=size) for plain in _plain_candidates(host, limits) for size in sizes]
    if not found:
        rooms = ", ".join(f"{name}: {host.max_kv_tokens}" for name, host in hosts.items())
        raise ConfigError(
            f"no KV pool {'among those given ' if limits.pool_tokens else ''}holds a request of {longest_request} "
            f"tokens within the memory of a host, which has room for so many tokens ({rooms})"
        )
    return found


def pool_sizes(host: MeasuredHost, limits: HostLimits, longest_request: int) -> list[int]:
    """Tokens, in whole blocks; those asked for as far as the host has room, or all that it has room for."""
    block = host.engine.block_size
    sizes = [size for size in limits.pool_tokens if size <= host.max_kv_tokens] or (
        [] if limits.pool_tokens else [host.max_kv_tokens]
    )
    whole = sorted({size - size % block for size in sizes})
    return [size for size in whole if size >= longest_request]


def _plain_candidates(host: MeasuredHost, limits: HostLimits) -> Iterator[Candidate]:
    """Without the pool's size."""
    for unit in (
        *mixed_units([ONE_HOST]),
        *(split_ratios([ONE_HOST], min(limits.max_hosts, limits.max_hosts_per_unit)) if limits.splits else ()),
    ):
        policies = SPLIT_POLICY_BUDGETS if unit.is_disaggregated else POLICY_BUDGETS
        policies = QUICK_POLICY_BUDGETS if limits.is_quick and not unit.is_disaggregated else policies
        for policy, budgets in policies.items():
            for budget, sequences, caches in product(
                budgets,
                QUICK_SEQUENCES if limits.is_quick else MOST_SEQUENCES,
                (True, False) if limits.has_reuse and not (limits.is_quick or unit.is_disaggregated) else (True,),
            ):
                is_measured = budget <= host.table.max_step_tokens and sequences <= host.table.max_sequences
                if is_measured and sequences <= budget:
                    yield replace(
                        unit,
                        num_units=limits.max_hosts // unit.devices_per_unit,
                        policy=policy,
                        token_budget=budget,
                        max_num_seqs=sequences,
                        enable_prefix_caching=caches,
                        profile=host.profile,
                    )
