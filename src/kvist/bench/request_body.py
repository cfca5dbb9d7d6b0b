"""Writes the bodies of a load's requests: only the prompt and the lengths differ from one to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kvist.bench.prompt_writer import Answers, PromptWriter
from kvist.workload.trace_record import TraceRecord


class BodyWriter:
    """fields: of all requests (model, temperature, ...); they may not be `prompt`, `messages`, `max_tokens`, `n`."""

    def __init__(self, prompts: PromptWriter, fields: Mapping[str, Any]) -> None:
        self.prompts = prompts
        self.fields = fields
        self._head = msgspec.json.encode({**fields, "stream": True})[:-1] + f',"{prompts.field}":'.encode()

    def prepare(self, records: Iterable[TraceRecord]) -> None:
        """Render what can be rendered before the run."""
        self.prompts.prepare(records)

    def write(self, record: TraceRecord, answers: Answers) -> bytes:
        tail = b',"max_tokens":%d}' if record.n == 1 else b',"n":' + b"%d" % record.n + b',"max_tokens":%d}'
        return self._head + self.prompts.write(record, answers) + tail % record.num_output_tokens
