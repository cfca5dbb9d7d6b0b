"""Builds what speculation needs, as configured."""

from __future__ import annotations

from pathlib import Path

from kvist.config.cache_folder import cache_folder
from kvist.config.speculation_config import SpeculationConfig
from kvist.scheduler.drafting import Speculator
from kvist.speculation.adaptive_speculator import AdaptiveSpeculator
from kvist.speculation.proposers import ModelProposer, NgramProposer, Proposer
from kvist.weights.checkpoint import Checkpoint, open_checkpoint


def make_speculator(config: SpeculationConfig) -> Speculator | None:
    """The speculator that the options ask for; None for none."""
    proposer: Proposer
    if config.speculative_model is not None:
        proposer = ModelProposer()
    elif config.speculative_method == "ngram":
        proposer = NgramProposer(min_length=config.prompt_lookup_min, max_length=config.prompt_lookup_max)
    else:
        return None
    return AdaptiveSpeculator(
        proposer, max_draft_tokens=config.num_speculative_tokens, is_adaptive=config.speculative_adaptive
    )


def open_draft_checkpoint(
    config: SpeculationConfig, checkpoint: Checkpoint, tokenizer: str | None
) -> Checkpoint | None:
    """The draft model, which `config` names by path; None without one. tokenizer: as in ModelConfig.

    Raises ConfigError if its vocabulary is not that of the model in `checkpoint`.
    """
    if config.speculative_model is None:
        return None
    # Here, because an engine without a draft model needs no tokenizer, whose code takes long to load.
    from kvist.tokenization.loading import load_tokenizer
    from kvist.tokenization.vocabulary_match import check_same_vocabulary

    draft = open_checkpoint(Path(config.speculative_model))
    folder = cache_folder()
    draft_tokenizer = load_tokenizer(draft, cache_folder=folder)
    check_same_vocabulary(load_tokenizer(checkpoint, path=tokenizer, cache_folder=folder), draft_tokenizer)
    return draft
