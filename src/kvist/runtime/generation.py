"""Turns a prompt into text: validates, expands `n`, submits, detokenizes, stops at stop strings, counts."""

from __future__ import annotations

from collections.abc import AsyncIterator

from kvist.runtime.engine_client import EngineClient
from kvist.runtime.generation_types import GenerationRequest, GenerationUpdate, ModelInfo


class TextGenerator:
    """The one way from token ids to streamed text; the server and the Python API both use it."""

    def __init__(self, client: EngineClient, model: ModelInfo) -> None:
        self.client = client
        self.model = model

    def validate(self, request: GenerationRequest) -> None:
        """Check lengths and token ids against the model. Raises InvalidRequestError or RequestTooLongError."""
        raise NotImplementedError

    def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationUpdate]:
        """Validate and submit `request`; yield updates, the last one with `is_final`.

        Errors are raised by the first step of the iteration, before any update: those of `validate`, QueueFullError,
        EngineUnavailableError. Closing the iterator at any point aborts all samples. Later failures end a sample with
        finish_reason ERROR. The joined texts do not depend on how tokens arrived.
        """
        raise NotImplementedError
