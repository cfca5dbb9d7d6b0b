"""Whether two models speak of the same tokens."""

from __future__ import annotations

from kvist.core.errors import ConfigError
from kvist.tokenization.tokenizer import Tokenizer


def check_same_vocabulary(tokenizer: Tokenizer, draft_tokenizer: Tokenizer) -> None:
    """Raise ConfigError, naming the first difference, if an id that both have means another token to the draft model.

    One may have more tokens than the other: files are padded differently.
    """
    num_shared = min(tokenizer.vocab_size, draft_tokenizer.vocab_size)
    for token_id in range(num_shared):
        ours, theirs = tokenizer.raw_token(token_id), draft_tokenizer.raw_token(token_id)
        if ours != theirs and None not in (ours, theirs):
            raise ConfigError(
                f"the draft model has another vocabulary: its token {token_id} is {theirs!r}, the model's is {ours!r}. "
                "Choose one of the same family for --speculative-model."
            )
