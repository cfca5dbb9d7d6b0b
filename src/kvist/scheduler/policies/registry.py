"""The policies by their configured name."""

from __future__ import annotations

from collections.abc import Mapping

from kvist.scheduler.policies.chunked_prefill import chunked_prefill
from kvist.scheduler.policies.decode_first import decode_first
from kvist.scheduler.policies.prefill_first import prefill_first
from kvist.scheduler.policies.slo_budget import slo_budget
from kvist.scheduler.policies.split_fuse import split_fuse
from kvist.scheduler.policies.static import static
from kvist.scheduler.policy import Policy

POLICY_FUNCTIONS: Mapping[str, Policy] = {
    "static": static,
    "prefill_first": prefill_first,
    "decode_first": decode_first,
    "chunked_prefill": chunked_prefill,
    "split_fuse": split_fuse,
    "slo_budget": slo_budget,
}
