"""What passes between an engine and its client. Handed over as objects inside a process, as msgpack between two."""

from __future__ import annotations

import msgspec

from kvist.config.engine_config import EngineConfig
from kvist.core import errors
from kvist.core.errors import EngineUnavailableError, InvalidRequestError, KvistError, QueueFullError
from kvist.core.request import FinishReason, NewRequest, RequestId
from kvist.core.request_events import EventBatch
from kvist.runtime.engine_client import EngineInfo
from kvist.scheduler.scheduler_status import SchedulerStatus

_ERROR_TYPES: dict[str, type[KvistError]] = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, KvistError)
}


class WireError(msgspec.Struct, frozen=True):
    """A KvistError on its way to the caller who caused it."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: Exception) -> WireError:
        """An error that is not kvist's own becomes EngineUnavailableError: the caller cannot mend it."""
        if not isinstance(error, KvistError):
            return cls("EngineUnavailableError", f"{type(error).__name__}: {error}")
        param = error.param if isinstance(error, InvalidRequestError) else None
        retry_after_s = error.retry_after_s if isinstance(error, QueueFullError) else None
        return cls(type(error).__name__, str(error), param, retry_after_s)

    def to_error(self) -> KvistError:
        error_type = _ERROR_TYPES.get(self.kind, EngineUnavailableError)
        if issubclass(error_type, InvalidRequestError):
            return error_type(self.message, param=self.param)
        if issubclass(error_type, QueueFullError):
            return error_type(self.message, retry_after_s=self.retry_after_s or 1.0)
        return error_type(self.message)


# --- client to engine ---


class Configure(msgspec.Struct, frozen=True, tag=True):
    """The first message to an engine process: what to build."""

    config: EngineConfig


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: NewRequest


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End the request; `reason` is what its last event will say."""

    request_id: RequestId
    reason: FinishReason = FinishReason.ABORT


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Answered by an entry of `Turn.resets` with the same `call_id`."""

    call_id: int


class SetTracing(msgspec.Struct, frozen=True, tag=True):
    """Begin or end the trace. Answered by a TracingAnswer with the same `call_id`."""

    call_id: int
    is_on: bool


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop now; whatever still runs is dropped."""


Command = Submit | Abort | ResetPrefixCache | SetTracing | Shutdown


# --- engine to client ---


class StartPhase(msgspec.Struct, frozen=True, tag=True):
    """A phase of the start has begun ("load weights", ...); `fraction` of it is done, if known."""

    name: str
    fraction: float | None = None


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: EngineInfo


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    error: WireError


class Crashed(msgspec.Struct, frozen=True, tag=True):
    """The step loop met an error that it must not survive: its state may be wrong. The engine's last message."""

    reason: str


class Refusal(msgspec.Struct, frozen=True):
    """The engine did not take the request."""

    request_id: RequestId
    error: WireError


class TracingAnswer(msgspec.Struct, frozen=True):
    """file: the trace's; error: why it was not begun or ended."""

    call_id: int
    file: str | None = None
    error: WireError | None = None


class Turn(msgspec.Struct, frozen=True, tag=True):
    """All that one turn of the step loop has to tell; an idle engine sends empty ones as a sign of life."""

    time_s: float
    load: SchedulerStatus
    batch: EventBatch | None = None
    refusals: list[Refusal] = []
    resets: list[tuple[int, bool]] = []
    tracing: list[TracingAnswer] = []


EngineMessage = StartPhase | Ready | StartFailed | Crashed | Turn
