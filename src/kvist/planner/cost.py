"""What a million tokens cost: the price of the devices' hours, shared between prompts and outputs."""

from __future__ import annotations

from dataclasses import dataclass

S_PER_HOUR = 3600.0
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """US dollars. per_million_input: prompt tokens, cached ones too; per_million_output: generated tokens.

    per_hour: of all devices, whether they are busy or not.
    """

    per_hour: float
    per_million_input: float
    per_million_output: float


def cost_at(
    *,
    num_devices: int,
    price_per_device_hour: float,
    rate_per_s: float,
    mean_prompt_tokens: float,
    mean_output_tokens: float,
    prefill_share: float,
) -> Cost | None:
    """The cost of a cluster that serves `rate_per_s` requests per second; None at rate 0.

    prefill_share: of the devices' time, what the prompts take; the outputs take the rest. Both pay for idle devices in
    the same proportion.
    """
    per_hour = num_devices * price_per_device_hour
    if rate_per_s <= 0.0:
        return None
    per_request = per_hour / S_PER_HOUR / rate_per_s
    return Cost(
        per_hour=per_hour,
        per_million_input=per_request * prefill_share / mean_prompt_tokens * MILLION,
        per_million_output=per_request * (1.0 - prefill_share) / mean_output_tokens * MILLION,
    )
