"""A step-time model with given coefficients: a plain linear function of the work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.costmodel.step_work import StepWork

MAX_SECONDS = 1e6  # of a coefficient: more is a wrong unit


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStepTime:
    """Seconds = per_step + the counts of `StepWork`, each times its coefficient.

    The shape of DistServe's fitted model (OSDI'24): a constant, tokens, attention pairs of prompts, keys of decodes.
    """

    per_step_s: float = 0.0
    per_token_s: float = 0.0
    per_sequence_s: float = 0.0
    per_decode_key_s: float = 0.0
    per_prefill_pair_s: float = 0.0

    def predict_s(self, work: StepWork) -> float:
        return (
            self.per_step_s
            + self.per_token_s * work.num_tokens
            + self.per_sequence_s * work.num_sequences
            + self.per_decode_key_s * work.decode_context_tokens
            + self.per_prefill_pair_s * work.prefill_pairs
        )

    def margin_s(self, work: StepWork) -> float:
        return 0.0


def linear_step_time(values: Mapping[str, Any], *, where: str) -> LinearStepTime:
    """The model with these coefficients. Raises ConfigError for unknown names, values that are no times, or none.

    Any: values as a file gives them.
    """
    names = [field.name for field in dataclasses.fields(LinearStepTime)]
    for name, value in values.items():
        if name not in names:
            raise ConfigError(
                f"{where} has no coefficient {name!r}.{did_you_mean(name, names)} There is {', '.join(names)}."
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= MAX_SECONDS:
            raise ConfigError(f"{where}: {name} must be a number of seconds from 0 to {MAX_SECONDS:g}, not {value!r}")
    if not any(values.values()):
        raise ConfigError(f"{where}: all coefficients are 0, so no step would take any time")
    return LinearStepTime(**{name: float(value) for name, value in values.items()})
