"""`kvist chat`: the conversation it keeps, its commands, interrupts, and the HTTP form."""

from __future__ import annotations

import io
from collections.abc import Generator

import pytest
from tests.fakes.openai_server import FakeOpenAIServer, serve_fake_openai

from kvist.cli.chat import talk
from kvist.cli.conversation import HttpConversation, Message
from kvist.cli.main import main
from kvist.core.errors import EngineUnavailableError, InvalidRequestError, KvistError


class ScriptedConversation:
    """Answers each turn with the next script: pieces to yield, an exception to raise in their place."""

    def __init__(self, *scripts: list[str | BaseException]) -> None:
        self.scripts = list(scripts)
        self.asked: list[list[Message]] = []

    def answer(self, messages: list[Message]) -> Generator[str, None, None]:
        self.asked.append(messages)
        for piece in self.scripts.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def close(self) -> None: ...


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_each_turn_carries_the_conversation_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = ScriptedConversation(["He", "llo"], ["Fine"])
    type_lines(monkeypatch, "Hi", "", "How are you?")
    assert talk(conversation, "Be brief.") == 0
    system = {"role": "system", "content": "Be brief."}
    assert conversation.asked[0] == [system, user("Hi")]
    assert conversation.asked[1] == [system, user("Hi"), assistant("Hello"), user("How are you?")]
    assert capsys.readouterr().out == "Hello\nFine\n"


def test_reset_forgets_and_exit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = ScriptedConversation(["a"], ["b"])
    type_lines(monkeypatch, "one", "/reset", "two", "/exit", "three")
    assert talk(conversation, None) == 0
    assert conversation.asked == [[user("one")], [user("two")]]


def test_a_stopped_answer_stays_in_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = ScriptedConversation(["half", KeyboardInterrupt()], ["ok"])
    type_lines(monkeypatch, "one", "two")
    assert talk(conversation, None) == 0
    assert conversation.asked[1] == [user("one"), assistant("half"), user("two")]
    assert "(stopped)" in capsys.readouterr().out


def test_a_refused_turn_is_reported_forgotten_and_told_to_scripts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = ScriptedConversation([InvalidRequestError("too long")], ["ok"])
    type_lines(monkeypatch, "one", "two")
    assert talk(conversation, None) == 1  # what a script sees
    assert conversation.asked[1] == [user("two")]
    assert capsys.readouterr().err == "kvist: too long\n"


def test_answers_cannot_drive_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = ScriptedConversation(["a\x1b[2Jb\tc\nd\x07é🌱"])
    type_lines(monkeypatch, "one")
    talk(conversation, None)
    assert capsys.readouterr().out == "a[2Jb\tc\ndé🌱\n"


def test_the_http_form_streams_from_the_servers_first_model() -> None:
    with serve_fake_openai(FakeOpenAIServer(["He", "llo"])) as server:
        conversation = HttpConversation(server.url, api_key=None, model=None, options={"max_tokens": 5})
        assert list(conversation.answer([user("Hi")])) == ["He", "llo"]
    assert server.requests == [
        {"model": "the-model", "messages": [user("Hi")], "stream": True, "max_tokens": 5},
    ]


def test_the_http_form_passes_errors_on() -> None:
    with serve_fake_openai(FakeOpenAIServer(["He", {"error": {"message": "the engine died"}}])) as server:
        conversation = HttpConversation(server.url, api_key=None, model="m", options={})
        answer = conversation.answer([user("Hi")])
        assert next(answer) == "He"
        with pytest.raises(EngineUnavailableError, match="the engine died"):
            next(answer)


def test_the_http_form_sends_its_key() -> None:
    with serve_fake_openai(FakeOpenAIServer(["ok"], api_key="secret")) as server:
        conversation = HttpConversation(server.url, api_key="secret", model=None, options={})
        assert list(conversation.answer([user("Hi")])) == ["ok"]
        with pytest.raises(InvalidRequestError, match="401: no such key"):
            HttpConversation(server.url, api_key="wrong", model=None, options={})


@pytest.mark.parametrize(
    ("url", "error"), [("ftp://x", InvalidRequestError), ("http://127.0.0.1:1", EngineUnavailableError)]
)
def test_a_url_without_a_server_is_an_error(url: str, error: type[KvistError]) -> None:
    with pytest.raises(error):
        HttpConversation(url, api_key=None, model=None, options={})


def test_chat_asks_a_running_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    type_lines(monkeypatch, "Hi")
    with serve_fake_openai(FakeOpenAIServer(["Hel", "lo"])) as server:
        assert main(["chat", "--url", server.url, "--temperature", "0", "--seed", "3"]) == 0
    assert capsys.readouterr().out == "Hello\n"
    assert server.requests[0]["temperature"] == 0
    assert server.requests[0]["seed"] == 3
