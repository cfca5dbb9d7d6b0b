"""From token ids to text: validation, samples, stop strings, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.scripted_client import ScriptedEngineClient
from tests.fakes.vocabularies import byte_level_metadata

from kvist.core.clock import VirtualClock
from kvist.core.errors import InvalidRequestError, QueueFullError, RequestTooLongError
from kvist.core.request import FinishReason
from kvist.core.sampling_params import SamplingParams
from kvist.runtime.generation import TextGenerator
from kvist.runtime.generation_types import GenerationRequest, GenerationUpdate, ModelInfo, SampleDelta
from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.tokenizer import Tokenizer

_VOCABULARY = GGUFVocabulary(byte_level_metadata([("h", "e"), ("l", "l")]))
TOKENIZER = Tokenizer(build_gguf_backend(_VOCABULARY), _VOCABULARY.traits())
EOS = 2
PROMPT = TOKENIZER.encode("a prompt")
MODEL = ModelInfo(
    name="m",
    served_names=("m",),
    max_model_len=100,
    vocab_size=TOKENIZER.vocab_size,
    eos_token_ids=(EOS,),
    seed=0,
    default_sampling={},
)


def generator_over(client: ScriptedEngineClient) -> TextGenerator:
    return TextGenerator(client, TOKENIZER, MODEL, VirtualClock())  # type: ignore[arg-type]


def request_for(prompt: Sequence[int] = PROMPT, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompt_token_ids=prompt, sampling=SamplingParams(**sampling))


def updates_of(client: ScriptedEngineClient, request: GenerationRequest) -> list[GenerationUpdate]:
    async def collect() -> list[GenerationUpdate]:
        async with aclosing(generator_over(client).generate(request)) as updates:
            return [update async for update in updates]

    return asyncio.run(collect())


def deltas_of(updates: Sequence[GenerationUpdate], index: int = 0) -> list[SampleDelta]:
    return [delta for update in updates for delta in update.deltas if delta.index == index]


def text_of(updates: Sequence[GenerationUpdate], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas_of(updates, index))


def tokens_of(updates: Sequence[GenerationUpdate], index: int = 0) -> list[int]:
    return [token for delta in deltas_of(updates, index) for token in delta.token_ids]


texts = st.text(alphabet="abhel é€😀", max_size=12)


@given(
    text=texts,
    stop=st.lists(st.text(alphabet="abhel", min_size=1, max_size=3), max_size=2),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    min_tokens=st.integers(0, 4),
    include=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_text_tokens_and_finish_do_not_depend_on_how_tokens_arrive(
    text: str, stop: list[str], sizes: list[int], min_tokens: int, include: bool
) -> None:
    script = [*TOKENIZER.encode(text), EOS]
    request = request_for(
        max_tokens=90, stop=tuple(stop), min_tokens=min_tokens, include_stop_str_in_output=include, logprobs=1
    )
    streamed = updates_of(ScriptedEngineClient(script, sizes=sizes), request)
    whole = updates_of(ScriptedEngineClient(script, sizes=(1000,)), request)
    assert text_of(streamed) == text_of(whole)
    assert tokens_of(streamed) == tokens_of(whole)
    assert streamed[-1].usage == whole[-1].usage
    last, last_whole = deltas_of(streamed)[-1], deltas_of(whole)[-1]
    assert (last.finish_reason, last.stop_reason) == (last_whole.finish_reason, last_whole.stop_reason)
    num_logprobs = sum(len(delta.logprobs or ()) for delta in deltas_of(streamed))
    assert num_logprobs == len(tokens_of(streamed))
    if not stop:
        assert text_of(streamed) == text + ("<|im_end|>" if include and EOS not in TOKENIZER.special_token_ids else "")


def test_eos_is_among_the_tokens_but_not_in_the_text() -> None:
    updates = updates_of(
        ScriptedEngineClient([*TOKENIZER.encode("hello"), EOS]), request_for(skip_special_tokens=False)
    )
    assert text_of(updates) == "hello"
    assert tokens_of(updates)[-1] == EOS
    assert deltas_of(updates)[-1].finish_reason is FinishReason.STOP
    assert deltas_of(updates)[-1].stop_reason is None
    assert updates[-1].usage.completion_tokens == len(TOKENIZER.encode("hello")) + 1
    assert updates[-1].usage.cached_tokens == 3


def test_a_stop_token_is_named_as_the_stop_reason() -> None:
    stop = TOKENIZER.encode("o")[0]
    updates = updates_of(ScriptedEngineClient(TOKENIZER.encode("hello")), request_for(stop_token_ids=(stop,)))
    assert text_of(updates) == "hell"
    assert deltas_of(updates)[-1].stop_reason == stop


def test_a_stop_string_ends_the_engines_request_and_its_surplus_tokens_are_not_counted() -> None:
    client = ScriptedEngineClient(TOKENIZER.encode("abc.def ghi"), sizes=(6,))
    updates = updates_of(client, request_for(stop=(".d",), max_tokens=50))
    assert text_of(updates) == "abc"
    assert deltas_of(updates)[-1].finish_reason is FinishReason.STOP
    assert deltas_of(updates)[-1].stop_reason == ".d"
    assert updates[-1].is_final
    assert updates[-1].usage.completion_tokens == len(tokens_of(updates)) == 5
    assert client.aborted == [client.submitted[0].request_id]
    assert client.ended == {client.submitted[0].request_id: FinishReason.STOP}


def test_the_first_update_comes_before_any_token() -> None:
    updates = updates_of(ScriptedEngineClient(TOKENIZER.encode("hello")), request_for())
    assert updates[0].deltas == []
    assert not updates[0].is_final


def test_samples_are_forks_of_the_first_with_one_seed() -> None:
    client = ScriptedEngineClient(TOKENIZER.encode("hello"))
    updates = updates_of(client, request_for(n=3, prompt_logprobs=0))
    first, *forks = client.submitted
    assert [fork.fork_of for fork in forks] == [first.request_id] * 2
    assert [fork.sample_index for fork in forks] == [1, 2]
    assert len({new.sampling.seed for new in client.submitted}) == 1
    assert [new.sampling.prompt_logprobs for new in client.submitted] == [0, None, None]
    assert [text_of(updates, index) for index in range(3)] == ["hello"] * 3
    assert updates[-1].usage.prompt_tokens == len(PROMPT)
    assert updates[-1].usage.completion_tokens == 3 * len(TOKENIZER.encode("hello"))
    assert sum(update.is_final for update in updates) == 1


def test_closing_early_aborts_every_sample() -> None:
    client = ScriptedEngineClient(TOKENIZER.encode("hello"))

    async def take_one() -> None:
        async with aclosing(generator_over(client).generate(request_for(n=3))) as updates:
            await anext(updates)

    asyncio.run(take_one())
    assert len(client.aborted) == len(client.submitted)


@pytest.mark.parametrize("n", [1, 3])
def test_a_refusal_is_raised_before_any_update(n: int) -> None:
    client = ScriptedEngineClient([], refusal=QueueFullError("full", retry_after_s=1.0))
    with pytest.raises(QueueFullError):
        updates_of(client, request_for(n=n))


def test_without_max_tokens_generation_may_fill_the_context() -> None:
    client = ScriptedEngineClient([5] * 200)
    updates = updates_of(client, request_for(max_tokens=None))
    assert len(PROMPT) + updates[-1].usage.completion_tokens == MODEL.max_model_len


def test_prompt_logprobs_cover_all_but_the_first_prompt_token_and_read_no_cache() -> None:
    client = ScriptedEngineClient(TOKENIZER.encode("hello"))
    updates = updates_of(client, request_for(prompt_logprobs=1, max_tokens=0))
    scored = [entry for update in updates for entry in update.prompt_logprobs or ()]
    assert len(scored) == len(PROMPT) - 1
    assert scored[0].chosen.token == TOKENIZER.token_text(5)
    assert client.submitted[0].skip_reading_prefix_cache
    assert updates[-1].is_final


def test_seeds_differ_between_requests_and_repeat_between_runs() -> None:
    def seeds() -> list[int | None]:
        client = ScriptedEngineClient([5])
        generator = generator_over(client)

        async def run() -> None:
            for _ in range(3):
                async with aclosing(generator.generate(request_for())) as updates:
                    async for _ in updates:
                        pass

        asyncio.run(run())
        return [new.sampling.seed for new in client.submitted]

    assert len(set(seeds())) == 3
    assert seeds() == seeds()


def test_a_request_without_detokenizing_gives_tokens_and_no_text() -> None:
    updates = updates_of(ScriptedEngineClient(TOKENIZER.encode("hello")), request_for(detokenize=False))
    assert text_of(updates) == ""
    assert tokens_of(updates) == TOKENIZER.encode("hello")


@pytest.mark.parametrize(
    ("request_", "error", "param"),
    [
        (request_for([]), InvalidRequestError, "prompt"),
        (request_for([1] * 100), RequestTooLongError, "prompt"),
        (request_for([1] * 101, max_tokens=0), RequestTooLongError, "prompt"),
        (request_for(max_tokens=99), RequestTooLongError, "max_tokens"),
        (request_for(min_tokens=99, max_tokens=None), RequestTooLongError, "min_tokens"),
        (request_for([1, 100_000]), InvalidRequestError, "prompt"),
        (request_for([-1]), InvalidRequestError, "prompt"),
        (request_for(logit_bias={100_000: 1.0}), InvalidRequestError, "logit_bias"),
        (request_for(stop_token_ids=(-5,)), InvalidRequestError, "stop_token_ids"),
        (request_for(allowed_token_ids=()), InvalidRequestError, "allowed_token_ids"),
    ],
)
def test_a_request_that_the_model_cannot_serve_names_the_field(
    request_: GenerationRequest, error: type[InvalidRequestError], param: str
) -> None:
    client = ScriptedEngineClient([5])
    with pytest.raises(error) as raised:
        updates_of(client, request_)
    assert raised.value.param == param
    assert client.submitted == []
