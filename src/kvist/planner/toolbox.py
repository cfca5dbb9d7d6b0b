"""Where advice begins, and what it may use: on devices of the catalogue, or on measured hosts."""

from __future__ import annotations

from kvist.core.errors import ConfigError
from kvist.costmodel.roofline import splits_heads
from kvist.planner.candidate import Candidate, Shape
from kvist.planner.evaluation import PlanningProblem, placed
from kvist.planner.host_techniques import host_toolbox
from kvist.planner.techniques import CHOICES, MUST_HAVES, Toolbox, plain_baseline


def find_toolbox(problem: PlanningProblem, num_devices: int) -> Toolbox:
    """Raises ConfigError if the model and the longest request fit no number of the devices."""
    longest = max(prompt + output for prompt, output in problem.load.lengths())
    if problem.hosts:
        return host_toolbox(problem.hosts, problem.deployment.objective, num_hosts=num_devices, longest_request=longest)
    return Toolbox(baseline=_device_baseline(problem, num_devices, longest), must_haves=MUST_HAVES, choices=CHOICES)


def room_for_kv(candidate: Candidate, problem: PlanningProblem) -> int:
    """Tokens of a replica's pool; 0 where it does not fit its devices."""
    try:
        config, _ = placed(candidate, problem)
    except ConfigError:
        return 0
    return config.groups[0].kv_cache_tokens or 0


def _device_baseline(problem: PlanningProblem, num_devices: int, longest: int) -> Candidate:
    """On the fewest devices per replica that hold the model and the longest request."""
    ranks = 1
    while ranks <= min(num_devices, problem.deployment.devices_per_node):
        shape, model = Shape(tensor_parallel_size=ranks), problem.model
        if splits_heads(model, ranks):
            plain = plain_baseline(
                shape, num_devices=num_devices, model=model, kv_tokens=longest, longest_request=longest
            )
            num_tokens = room_for_kv(plain, problem)
            if num_tokens >= longest:
                return plain_baseline(
                    shape, num_devices=num_devices, model=model, kv_tokens=num_tokens, longest_request=longest
                )
        ranks *= 2
    raise ConfigError(
        f"{problem.deployment.model} and a request of {longest} tokens fit no replica of up to "
        f"{num_devices} x {problem.deployment.device.name}: take more devices"
    )
