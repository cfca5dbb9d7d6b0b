"""How a request's tokens are chosen and when it stops. vLLM's field names; travels on the wire."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from kvist.core.errors import InvalidRequestError

MAX_LOGPROBS = 128
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 4096  # of all stop strings together: they are compiled into an automaton for each request
MAX_SEED = 2**63 - 1

_COLLECTIONS = ("stop", "stop_token_ids", "allowed_token_ids")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request's sampling options. Raises InvalidRequestError naming the field on a bad value.

    temperature 0 is greedy. top_k 0 is off, top_p 1 is off, min_p 0 is off. `max_tokens` None means up to the
    context's end. `seed` None lets the engine choose one. `logprobs` k returns the sampled token's and the k
    best log-probabilities; 0 returns only the sampled token's.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_range("n", self.n, 1, 128)
        self._check_range("temperature", self.temperature, 0.0, 100.0)
        self._check_range("top_k", self.top_k, 0, 2**31 - 1)
        self._check_range("min_p", self.min_p, 0.0, 1.0)
        self._check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_range("seed", self.seed, -MAX_SEED, MAX_SEED)
        self._check_range("max_tokens", self.max_tokens, 0, 2**31 - 1)
        self._check_range("min_tokens", self.min_tokens, 0, 2**31 - 1)
        self._check_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        self._check_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(f"top_p must be in (0, 1], not {self.top_p}", param="top_p")
        if not (self.repetition_penalty > 0.0 and math.isfinite(self.repetition_penalty)):
            raise InvalidRequestError(
                f"repetition_penalty must be positive, not {self.repetition_penalty}", param="repetition_penalty"
            )
        for token_id, bias in (self.logit_bias or {}).items():
            if not math.isfinite(bias):
                raise InvalidRequestError(
                    f"logit_bias of token {token_id} must be a finite number, not {bias}", param="logit_bias"
                )
        self._check_stop()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens {self.min_tokens} is larger than max_tokens {self.max_tokens}", param="min_tokens"
            )

    def _check_kinds(self) -> None:
        """Refuse values of a wrong kind, and bring the collections that people pass to tuples."""
        for name in _COLLECTIONS:
            given: Any = getattr(self, name)  # Any: a program may pass anything
            if given is None or type(given) is tuple:
                continue
            if name == "stop" and isinstance(given, str):
                given = (given,)
            if not isinstance(given, list | tuple | set | frozenset):
                raise InvalidRequestError(f"{name} must be a list, not {given!r}", param=name)
            msgspec.structs.force_setattr(self, name, tuple(given))
        try:
            msgspec.convert(msgspec.structs.asdict(self), _KINDS)
        except msgspec.ValidationError as error:
            place = re.search(r"\$\.(\w+)", str(error))
            field = place[1] if place else None
            raise InvalidRequestError(f"{field}: {str(error).split(' - ')[0]}", param=field) from error

    def _check_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS or any(not text for text in self.stop):
            raise InvalidRequestError(f"stop takes at most {MAX_STOP_STRINGS} non-empty strings", param="stop")
        if sum(len(text) for text in self.stop) > MAX_STOP_CHARACTERS:
            raise InvalidRequestError(
                f"stop takes at most {MAX_STOP_CHARACTERS} characters in all its strings", param="stop"
            )
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=true; use stop_token_ids", param="stop")

    @staticmethod
    def _check_range(name: str, value: float | None, low: float, high: float) -> None:
        if value is not None and not low <= value <= high:  # also refuses NaN
            raise InvalidRequestError(f"{name} must be between {low} and {high}, not {value}", param=name)


# The same fields without the checks above, to check only the kinds of values.
_KINDS = msgspec.defstruct(
    "SamplingKinds", [(field.name, field.type) for field in msgspec.structs.fields(SamplingParams)], kw_only=True
)
