"""Streams of all servers are read token by token, however they are cut into packets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.bench import answer_reader
from kvist.bench.answer_reader import MAX_EVENT_BYTES, AnswerReader, StreamError, deliveries
from kvist.bench.run_requests import sample_deliveries


def event(choices: list[dict[str, Any]], **fields: Any) -> bytes:
    return b"data: " + json.dumps({"id": "x", "choices": choices, **fields}).encode() + b"\n\n"


def text(piece: str, *, ids: list[int] | None = None, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "text": piece, "finish_reason": finish} | ({} if ids is None else {"token_ids": ids})


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}}


def read(*timed: tuple[float, bytes], num_samples: int = 1) -> AnswerReader:
    reader = AnswerReader(num_samples)
    for time_s, data in timed:
        reader.feed(time_s, data)
    reader.finish()
    return reader


def counted(reader: AnswerReader) -> list[list[tuple[float, int]]]:
    return sample_deliveries(reader, lambda words: len(words.split()))


def test_token_ids_count_and_not_chunks() -> None:
    reader = read(
        (1.0, event([text("a", ids=[5])])),
        (2.0, event([text("", ids=[6, 7])]) + event([text("bcd", ids=[8])])),
        (3.0, event([text("e", ids=[9], finish="length")]) + event([], usage=USAGE) + DONE),
    )
    assert counted(reader) == [[(1.0, 1), (2.0, 2), (2.0, 1), (3.0, 2)]]  # the sixth token had no text and no id
    assert (reader.samples[0].text, reader.samples[0].token_ids) == ("abcde", [5, 6, 7, 8, 9])
    assert reader.usage is not None
    assert reader.usage.cached_tokens == 4


@pytest.mark.parametrize(
    "running", [lambda n: {"usage": {"completion_tokens": n}}, lambda n: {"timings": {"predicted_n": n}}]
)
def test_a_running_count_counts(running: Any) -> None:
    reader = read(
        (1.0, event([text("a")], **running(1))),
        (2.0, event([text("bcd")], **running(4))),
        (3.0, event([text("", finish="stop")], **running(4)) + DONE),
    )
    assert counted(reader) == [[(1.0, 1), (2.0, 3)]]


def sglang_chunk(text: str, num_tokens: int, *, is_chat: bool, finish: str | None = None) -> bytes:
    """As SGLang writes it, asked for continuous_usage_stats; a chunk holds what `--stream-interval` steps gave."""
    said = {"role": None, "content": text, "reasoning_content": None, "tool_calls": None}
    choice = {"index": 0, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    choice |= {"delta": said} if is_chat else {"text": text}
    usage = {"prompt_tokens": 9, "total_tokens": 9 + num_tokens, "completion_tokens": num_tokens}
    return event([choice], object="chunk", created=1, model="m", usage={**usage, "prompt_tokens_details": None})


@pytest.mark.parametrize("is_chat", [False, True])
def test_sglangs_streams_are_counted_by_their_running_usage(is_chat: bool) -> None:
    begin = event(
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        usage={"prompt_tokens": 9, "total_tokens": 9, "completion_tokens": 0, "prompt_tokens_details": None},
    )
    reader = read(
        (0.5, begin if is_chat else b""),
        (1.0, sglang_chunk("To", 1, is_chat=is_chat)),
        (2.0, sglang_chunk(" be or", 4, is_chat=is_chat)),
        (3.0, sglang_chunk("", 6, is_chat=is_chat, finish="length")),
        (3.0, event([], usage=USAGE) + DONE),
    )
    assert counted(reader) == [[(1.0, 1), (2.0, 3), (3.0, 2)]]
    assert reader.samples[0].text == "To be or"
    assert reader.usage is not None
    assert reader.usage.cached_tokens == 4  # with --enable-cache-report


def test_a_total_is_spread_over_the_chunks_by_their_text() -> None:
    reader = read(
        (1.0, event([text("ab")])),
        (2.0, event([text("cdef")])),
        (3.0, event([text("ghijkl", finish="stop")]) + event([], usage=USAGE) + DONE),
    )
    assert counted(reader) == [[(1.0, 1), (2.0, 2), (3.0, 3)]]


def test_a_count_in_the_last_chunk_alone_is_a_total() -> None:
    reader = read(
        (1.0, event([text("ab")])),
        (2.0, event([text("cd")])),
        (3.0, event([text("", finish="length")], timings={"predicted_n": 4}) + DONE),
    )
    assert counted(reader) == [[(1.0, 2), (2.0, 2)]]


def test_text_is_counted_where_the_server_says_nothing() -> None:
    reader = read((1.0, event([text("one two ")])), (2.0, event([text("three four", finish="stop")]) + DONE))
    assert counted(reader) == [[(1.0, 2), (2.0, 2)]]


@given(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=20), st.integers(1, 200))
def test_spread_tokens_always_add_up(pieces: list[str], total: int) -> None:
    reader = AnswerReader()
    for number, piece in enumerate(pieces):
        reader.feed(float(number), event([text(piece)]))
    spread = deliveries(reader.samples[0], total)
    assert sum(count for _, count in spread) == total
    assert all(count > 0 for _, count in spread)
    assert spread[0][0] == 0.0


def test_samples_are_told_apart() -> None:
    reader = read(
        (1.0, event([text("a", ids=[1], index=1)])),
        (2.0, event([text("b", ids=[2, 3], index=0, finish="stop")])),
        (3.0, event([text("c", ids=[4], index=1, finish="stop")])),
        num_samples=2,
    )
    assert counted(reader) == [[(2.0, 2)], [(1.0, 1), (3.0, 1)]]


def test_chat_chunks_comments_and_crlf_are_read() -> None:
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}}
    chunk = {"index": 0, "delta": {"content": "hé"}, "token_ids": [1]}
    data = b": ping\n\n" + event([role]) + event([chunk]) + b"event: x\ndata:[DONE]\n\n"
    reader = read((1.0, data.replace(b"\n", b"\r\n")))
    assert reader.samples[0].pieces == [(1.0, "hé", 1)]


@given(st.lists(st.integers(1, 400), max_size=12))
def test_packets_may_be_cut_anywhere(cuts: list[int]) -> None:
    stream = event([text("a", ids=[1])]) + b": ping\n\n" + event([text("bé", ids=[2], finish="stop")]) + DONE
    reader, rest = AnswerReader(), stream
    for cut in cuts:
        reader.feed(0.0, rest[:cut])
        rest = rest[cut:]
    reader.feed(1.0, rest)
    reader.finish()
    assert (reader.samples[0].text, reader.samples[0].token_ids) == ("abé", [1, 2])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'data: {"error":{"message":"out of memory"}}\n\n', "out of memory"),
        (b'data: {"object":"error","message":"no such model"}\n\n', "no such model"),
        (b"data: <html>\n\n", "no chunk"),
        (event([text("a", index=3)]), "index 3"),
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        AnswerReader().feed(0.0, data)


def test_a_stream_that_ends_early_is_an_error() -> None:
    with pytest.raises(StreamError, match="ended before"):
        read((1.0, event([text("a")])))


@pytest.mark.parametrize(
    "chunk",
    [
        b'{"choices":[{"text":"a","index":-1}]}',
        b'{"choices":[],"usage":{"prompt_tokens":-5,"completion_tokens":1}}',
        b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1000000000000}}',
    ],
)
def test_impossible_numbers_are_an_error(chunk: bytes) -> None:
    with pytest.raises(StreamError, match="no chunk of an answer"):
        AnswerReader().feed(0.0, b"data: " + chunk + b"\n\n")


def test_an_event_without_an_end_is_an_error() -> None:
    reader = AnswerReader()
    reader.feed(0.0, b"x" * MAX_EVENT_BYTES)
    with pytest.raises(StreamError, match="more than"):
        reader.feed(0.0, b"x")


def test_a_stream_that_is_done_without_an_answer_is_an_error() -> None:
    reader = AnswerReader()
    reader.feed(0.0, b"data: [DONE]\n\n")
    with pytest.raises(StreamError):
        reader.finish()


def test_a_server_that_never_stops_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_reader, "MAX_ANSWER_BYTES", 1000)
    reader = AnswerReader()
    data = event([text("and on", ids=[1])])
    for _ in range(1000 // len(data)):
        reader.feed(0.0, data)
    with pytest.raises(StreamError, match="more than 1000 bytes"):
        reader.feed(0.0, data)
    assert reader.samples[0].token_ids
