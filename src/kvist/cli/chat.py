"""Talk to a model in the terminal: one loaded into this process, or one behind a running server (--url).

/reset forgets the conversation, /exit leaves. Ctrl-C stops an answer; pressed again at the prompt, it leaves.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any

from kvist.api.async_llm import AsyncLLM
from kvist.cli.conversation import Conversation, HttpConversation, Message
from kvist.cli.local_engine import make_local_llm, sampling_for
from kvist.cli.model_source import add_model_arguments
from kvist.cli.sampling_arguments import add_sampling_arguments, given_sampling
from kvist.cli.start_display import start_display
from kvist.config.arguments import add_config_arguments
from kvist.config.load import ENGINE_SECTIONS, environment_api_keys, load_configs
from kvist.core.errors import ConfigError, InvalidRequestError, KvistError

HELP = "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer"
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the model is, the system message, sampling and engine options."""
    add_model_arguments(parser)
    parser.add_argument("--url", metavar="URL", help="ask this OpenAI-compatible server instead of loading a model")
    parser.add_argument("--api-key", metavar="KEY", help="for --url (default: KVIST_API_KEY)")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_sampling_arguments(parser, max_tokens=None)
    add_config_arguments(parser, ENGINE_SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    with closing(_open_conversation(arguments)) as conversation:
        return talk(conversation, arguments.system)


class LocalConversation:
    """Talks to an engine in this process. The event loop runs only while something is awaited."""

    def __init__(self, llm: AsyncLLM, fields: dict[str, Any]) -> None:
        self._llm = llm
        self._runner = asyncio.Runner()
        try:
            with start_display() as display:
                self._runner.run(llm.start(display.show))
            self._sampling = sampling_for(llm, fields)
        except BaseException:
            self.close()
            raise

    def answer(self, messages: list[Message]) -> Generator[str, None, None]:
        """Stream one answer; closing it aborts the request."""
        outputs = self._llm.chat(messages, self._sampling)
        num_given = 0

        async def next_text() -> str | None:
            output = await anext(outputs, None)
            return None if output is None else output.outputs[0].text

        try:
            while (text := self._runner.run(next_text())) is not None:
                if len(text) > num_given:
                    yield text[num_given:]
                    num_given = len(text)
        finally:
            self._runner.run(outputs.aclose())

    def close(self) -> None:
        """Free the model."""
        self._runner.run(self._llm.shutdown())
        self._runner.close()


def talk(conversation: Conversation, system: str | None) -> int:
    """Read lines and print answers until the user leaves. Returns the exit code: in a script, 1 if an answer failed."""
    start: list[Message] = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(HELP)
    warned = has_failed = False
    while True:
        try:
            line = _read_line(is_terminal)
        except KeyboardInterrupt:
            if warned or not is_terminal:
                return EXIT_INTERRUPTED
            warned = True
            print("\n(Ctrl-C again leaves)")
            continue
        warned = False
        if line is None or line == "/exit":
            return EXIT_FAILED if has_failed and not is_terminal else 0
        if line == "/reset":
            messages = list(start)
        elif line.startswith("/"):
            print(HELP)
        elif line:
            before, messages = messages, _turn(conversation, messages, line)
            has_failed |= messages is before


def _turn(conversation: Conversation, messages: list[Message], line: str) -> list[Message]:
    """One question and its answer. Returns the conversation after it: unchanged if there was no answer."""
    asked = [*messages, {"role": "user", "content": line}]
    pieces: list[str] = []
    try:
        with closing(conversation.answer(asked)) as answer:
            for piece in answer:
                pieces.append(piece)
                print(_printable(piece), end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)", end="")
    except KvistError as error:
        print(f"kvist: {error}", file=sys.stderr)
        return messages
    print()
    return [*asked, {"role": "assistant", "content": "".join(pieces)}]


def _read_line(is_terminal: bool) -> str | None:  # noqa: FBT001 - private, and the two calls read well
    """The next line without surrounding space; None at the end of the input."""
    try:
        return input("> " if is_terminal else "").strip()
    except EOFError:
        if is_terminal:
            print()
        return None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the input is not text in {error.encoding}: {error.reason}") from error


def _printable(text: str) -> str:
    """The text without control characters, with which a model could drive the terminal."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


def _open_conversation(arguments: argparse.Namespace) -> Conversation:
    fields = given_sampling(arguments)
    if arguments.url is None:
        if arguments.api_key is not None:
            raise ConfigError("--api-key goes with --url: a model in this process needs none")
        return LocalConversation(make_local_llm(arguments), {"max_tokens": None, **fields})
    config = load_configs(arguments, ENGINE_SECTIONS)["model"]
    model = config.model if _names_a_model(arguments) else None
    api_key = arguments.api_key or next(iter(environment_api_keys()), None)
    return HttpConversation(arguments.url, api_key=api_key, model=model, options=fields)


def _names_a_model(arguments: argparse.Namespace) -> bool:
    return arguments.model_argument is not None or hasattr(arguments, "model.model")
