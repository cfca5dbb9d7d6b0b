"""Every error that kvist raises on purpose. Each says what was asked, what there is and what to do.

The server maps a class to one HTTP status (server/error_responses), the command line to one exit code.
"""

from __future__ import annotations


class KvistError(Exception):
    """Root of kvist's errors; the message is fit to be shown to the user who caused it."""


class ConfigError(KvistError):
    """An option has a bad name, a bad value, or does not go with another option."""


class CheckpointError(KvistError):
    """A model file is missing, damaged, hostile or of a kind that cannot be read."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is readable, but its architecture or number format is not supported."""


class DownloadError(KvistError):
    """A model could not be fetched or its checksum does not match."""


class InvalidRequestError(KvistError):
    """A request is malformed or asks for what this server cannot do. `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestTooLongError(InvalidRequestError):
    """Prompt plus asked output exceed the model's context or the KV pool."""


class ModelNotFoundError(KvistError):
    """The request names a model that this server does not serve."""


class AuthenticationError(KvistError):
    """The API key is missing or unknown."""


class QueueFullError(KvistError):
    """The waiting queue is at its bound. `retry_after_s` is an estimate of when a place will be free."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceededError(KvistError):
    """The request's deadline passed before it finished; its work was dropped."""


class EngineUnavailableError(KvistError):
    """The engine is starting, draining, stuck or dead. `comes_back`: whether the same request may succeed soon."""

    def __init__(self, message: str, *, comes_back: bool = True) -> None:
        super().__init__(message)
        self.comes_back = comes_back


class KVPoolExhaustedError(KvistError):
    """More KV blocks are needed than are free or evictable."""
