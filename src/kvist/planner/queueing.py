"""Mean time to first token of prompts of equal length by queueing theory, as in DistServe (OSDI'24), section 3.1.

Prompts come as a Poisson process and are served one at a time (M/D/1, Pollaczek-Khinchine). duration_s: of a prompt on
one device; rate_per_s * duration_s is the utilization.
"""

from __future__ import annotations

import math


def ttft_one_device_s(rate_per_s: float, duration_s: float) -> float:
    """D + R D^2 / (2 (1 - R D)); infinite from saturation on."""
    free = 1.0 - rate_per_s * duration_s
    return math.inf if free <= 0.0 else duration_s + rate_per_s * duration_s**2 / (2.0 * free)


def ttft_two_stages_s(rate_per_s: float, duration_s: float) -> float:
    """A pipeline of two stages of D / 2, the first of which is what prompts wait for: D + R D^2 / (4 (2 - R D))."""
    free = 2.0 - rate_per_s * duration_s
    return math.inf if free <= 0.0 else duration_s + rate_per_s * duration_s**2 / (4.0 * free)


def ttft_two_ranks_s(rate_per_s: float, duration_s: float, speed_up: float) -> float:
    """Two devices share each prompt and are `speed_up` times as fast (1 to 2): D / K + R D^2 / (2 K (K - R D))."""
    free = speed_up - rate_per_s * duration_s
    if free <= 0.0:
        return math.inf
    return duration_s / speed_up + rate_per_s * duration_s**2 / (2.0 * speed_up * free)
