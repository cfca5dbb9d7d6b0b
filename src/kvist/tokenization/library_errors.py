"""Turns whatever the `tokenizers` library raises into errors of kvist's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvist.core.errors import CheckpointError, InvalidRequestError, KvistError


def _is_from_library(error: BaseException) -> bool:
    """Whether `error` is the library's. It raises plain Exception, and its panics are not even that."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def checkpoint_errors(what: str) -> Iterator[None]:
    """Raise CheckpointError saying `what` is wrong for any failure of the library inside the block."""
    try:
        yield
    except KvistError:
        raise
    except BaseException as error:
        if not _is_from_library(error):
            raise
        raise CheckpointError(f"{what}: {error}") from error


@contextmanager
def request_errors() -> Iterator[None]:
    """Raise InvalidRequestError for text that the library refuses inside the block."""
    try:
        yield
    except (UnicodeEncodeError, TypeError) as error:
        raise InvalidRequestError(
            "the text holds lone surrogates, which are no Unicode characters; send valid UTF-8"
        ) from error
    except BaseException as error:
        if not _is_from_library(error):
            raise
        raise InvalidRequestError(f"the model's tokenizer cannot encode this text: {error}") from error
