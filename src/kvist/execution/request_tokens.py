"""What an executor keeps of one request between steps."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from kvist.core.step_plan import ScheduledRequestData
from kvist.execution.sampler import SamplingRow


@dataclass(slots=True)
class RequestTokens:
    """Its tokens, its block table and what decides its sampling. Within a step its drafts stand after its tokens."""

    data: ScheduledRequestData
    seed: int
    token_ids: array[int]  # prompt and output
    block_ids: array[int] = field(default_factory=lambda: array("i"))

    def row(self, num_tokens: int) -> SamplingRow:
        """What decides the token after the first `num_tokens`."""
        return SamplingRow(
            params=self.data.sampling,
            token_ids=self.token_ids[:num_tokens],
            num_prompt_tokens=self.data.num_prompt_tokens,
            seed=self.seed,
            sample_index=self.data.sample_index,
            eos_token_ids=self.data.eos_token_ids,
        )
