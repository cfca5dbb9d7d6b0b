"""Speculative decoding: where drafts come from and how long they may get."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.option import option

METHODS = ("none", "ngram", "draft_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    speculative_method: str = option(
        "none",
        help="where drafts come from: ngram looks the last tokens up in the request's own text; a --speculative-model "
        "implies draft_model",
        choices=METHODS,
    )
    speculative_model: str | None = option(
        None,
        help="model that drafts, with the same vocabulary: catalogue name, path or Hugging Face id",
        aliases=("-md", "--model-draft", "--speculative-draft-model-path"),
    )
    num_speculative_tokens: int = option(
        6,
        help="longest draft of one request in one step",
        aliases=("--speculative-num-draft-tokens", "--draft", "--draft-max"),
        low=1,
        high=64,
        unit="tokens",
    )
    prompt_lookup_min: int = option(2, help="ngram: fewest tokens that must match", low=1, high=64, unit="tokens")
    prompt_lookup_max: int = option(
        8,
        help="ngram: matches are compared up to so many tokens; longer ones come first",
        low=1,
        high=256,
        unit="tokens",
    )
    speculative_adaptive: bool = option(
        True, help="draft less, or nothing, where measured step times and accepted shares say that it does not pay"
    )

    @property
    def is_on(self) -> bool:
        return self.speculative_method != "none" or self.speculative_model is not None
