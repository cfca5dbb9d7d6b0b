"""Frames: what goes in comes out, however it is cut, and nothing else is accepted."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.clients import new_request

from kvist.config.engine_config import EngineConfig
from kvist.core.errors import InvalidRequestError, KVPoolExhaustedError, QueueFullError
from kvist.core.request import FinishReason, RequestId
from kvist.core.request_events import EventBatch, Finished, Queued, TokensSampled
from kvist.core.step_result import TokenLogprobs
from kvist.runtime.engine_process import ToEngine
from kvist.runtime.messages import (
    Abort,
    Configure,
    EngineMessage,
    Refusal,
    ResetPrefixCache,
    Shutdown,
    Submit,
    Turn,
    WireError,
)
from kvist.runtime.transport import MAX_FRAME_BYTES, FrameDecoder, FrameEncoder, FrameError
from kvist.scheduler.scheduler_status import SchedulerStatus

LOGPROBS = TokenLogprobs(token_id=4, logprob=-0.5, rank=1, top_token_ids=[4, 5], top_logprobs=[-0.5, -1.5])
TURN = Turn(
    time_s=1.5,
    load=SchedulerStatus(1, 2, 3, 4, 5, 6),
    batch=EventBatch(
        time_s=1.5,
        events=[
            Queued(RequestId("a"), 1.0, 3),
            TokensSampled(RequestId("a"), 1.2, [4], [LOGPROBS]),
            Finished(RequestId("a"), 1.5, FinishReason.STOP, 3, 1, 0, 0, 4, None),
        ],
    ),
    refusals=[Refusal(RequestId("b"), WireError.of(InvalidRequestError("no", param="prompt")))],
    resets=[(3, True)],
)
COMMANDS = [
    Configure(EngineConfig()),
    Submit(new_request("a", ttft_ms=100.0)),
    Abort(RequestId("a")),
    ResetPrefixCache(9),
    Shutdown(),
]


def decode(decoder: FrameDecoder[object], data: bytes, sizes: list[int]) -> list[object]:
    messages: list[object] = []
    position = 0
    for size in [*sizes, len(data)]:
        messages += decoder.feed(data[position : position + size])
        position += size
    return messages


@given(sizes=st.lists(st.integers(0, 200), max_size=30))
@settings(deadline=None, max_examples=60)
def test_messages_survive_any_cut_of_the_stream(sizes: list[int]) -> None:
    encoder = FrameEncoder()
    data = b"".join(bytes(encoder.encode(command)) for command in COMMANDS)
    assert decode(FrameDecoder(ToEngine), data, sizes) == COMMANDS
    assert decode(FrameDecoder(EngineMessage), bytes(encoder.encode(TURN)), sizes) == [TURN]


@given(data=st.binary(max_size=300))
@settings(deadline=None, max_examples=200)
def test_random_bytes_give_frame_error_or_nothing(data: bytes) -> None:
    with suppress(FrameError):
        assert list(FrameDecoder[object](ToEngine).feed(data)) == []


@given(data=st.data())
@settings(deadline=None, max_examples=200)
def test_a_damaged_message_gives_frame_error_or_another_message(data: st.DataObject) -> None:
    frame = FrameEncoder().encode(Submit(new_request("a")))
    position = data.draw(st.integers(4, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    try:
        messages = list(FrameDecoder[object](ToEngine).feed(bytes(frame)))
    except FrameError:
        return
    assert all(isinstance(message, ToEngine) for message in messages)


def test_an_oversize_frame_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(FrameError, match="exceeds the limit"):
        list(FrameDecoder[object](ToEngine).feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))


def test_nested_payload_gives_frame_error() -> None:
    payload = b"\x91" * 100_000 + b"\x90"
    with pytest.raises(FrameError):
        list(FrameDecoder[object](ToEngine).feed(len(payload).to_bytes(4, "little") + payload))


def test_errors_keep_kind_and_fields_on_the_wire() -> None:
    error = WireError.of(QueueFullError("full", retry_after_s=2.5)).to_error()
    assert isinstance(error, QueueFullError)
    assert error.retry_after_s == 2.5
    invalid = WireError.of(InvalidRequestError("bad", param="top_p")).to_error()
    assert isinstance(invalid, InvalidRequestError)
    assert invalid.param == "top_p"
    assert isinstance(WireError.of(KVPoolExhaustedError("none left")).to_error(), KVPoolExhaustedError)
    assert "ZeroDivisionError" in str(WireError.of(ZeroDivisionError("1/0")).to_error())
