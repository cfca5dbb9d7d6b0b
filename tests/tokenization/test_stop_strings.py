from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.vocabularies import byte_level_metadata

from kvist.core.errors import InvalidRequestError
from kvist.core.sampling_params import SamplingParams
from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.output_text import OutputText
from kvist.tokenization.stop_strings import StopStringMatcher, StopStrings
from kvist.tokenization.tokenizer import Tokenizer

few_letters = st.text(alphabet="ab😀", max_size=12)
stop_lists = st.lists(st.text(alphabet="ab😀", min_size=1, max_size=4), min_size=1, max_size=4)


def naive_search(text: str, stop: list[str], *, include: bool) -> tuple[str, str | None]:
    """Cut `text` at the match that ends first, of those the longest."""
    for end in range(1, len(text) + 1):
        matches = [candidate for candidate in stop if text[:end].endswith(candidate)]
        if matches:
            longest = max(matches, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def naive_held_back(text: str, stop: list[str]) -> int:
    return max(k for k in range(len(text) + 1) if any(s.startswith(text[len(text) - k :]) and len(s) > k for s in stop))


@settings(deadline=None, max_examples=400)
@given(chunks=st.lists(few_letters, max_size=6), stop=stop_lists, include=st.booleans())
def test_streamed_text_equals_a_search_of_the_whole_text(chunks, stop, include):
    expected, expected_stop = naive_search("".join(chunks), stop, include=include)
    matcher = StopStringMatcher(StopStrings(stop), include_in_output=include)

    released = "".join([matcher.push(chunk) for chunk in chunks]) + matcher.flush()

    assert released == expected
    assert matcher.matched == expected_stop


@settings(deadline=None, max_examples=300)
@given(chunks=st.lists(few_letters, max_size=6), stop=stop_lists)
def test_exactly_the_longest_possible_beginning_of_a_stop_string_is_held_back(chunks, stop):
    matcher = StopStringMatcher(StopStrings(stop))
    text, released = "", ""
    for chunk in chunks:
        text += chunk
        released += matcher.push(chunk)
        if matcher.matched is not None:
            return
        assert len(text) - len(released) == naive_held_back(text, stop) == matcher.num_held_characters


def test_the_start_of_a_stop_string_is_not_leaked_and_real_text_is_not_eaten():
    matcher = StopStringMatcher(StopStrings(["</end>"]))
    assert matcher.push("a </e") == "a "
    assert matcher.push("ast </end") == "</east "
    assert matcher.push("> more") == ""
    assert matcher.matched == "</end>"
    assert matcher.push("anything") == ""


TOKENIZER_VOCABULARY = GGUFVocabulary(byte_level_metadata([("a", "b"), ("b", "a"), ("ab", "ab")]))
TOKENIZER = Tokenizer(build_gguf_backend(TOKENIZER_VOCABULARY), TOKENIZER_VOCABULARY.traits())


@settings(deadline=None, max_examples=200)
@given(
    ids=st.lists(st.sampled_from([*TOKENIZER.encode("ab😀ba a"), TOKENIZER.vocab_size - 1, 2]), max_size=16),
    cuts=st.lists(st.integers(1, 4), max_size=16),
    stop=st.none() | stop_lists,
    include=st.booleans(),
    min_tokens=st.integers(0, 6),
)
def test_output_text_does_not_depend_on_how_tokens_arrive(ids, cuts, stop, include, min_tokens):
    def run(sizes: list[int]) -> tuple[str, str | None, int, int]:
        compiled = None if stop is None else StopStrings(stop)
        output = OutputText(TOKENIZER, stop=compiled, include_stop_str_in_output=include, min_tokens=min_tokens)
        text, position = "", 0
        for size in [*sizes, len(ids)]:
            text += output.append(ids[position : position + size])
            position += size
        text += output.finish()
        return text, output.stop_string, output.num_tokens, output.num_text_tokens

    assert run(cuts) == run([]) == run([1] * len(ids))
    if min_tokens == 0:
        assert run([])[0] == naive_search(TOKENIZER.decode(ids), stop or [], include=include)[0]


def test_tokens_of_the_stop_string_do_not_belong_to_the_text():
    output = OutputText(TOKENIZER, stop=StopStrings(["ba"]))
    ids = [*TOKENIZER.encode("a!"), TOKENIZER.token_id("b"), TOKENIZER.token_id("a"), TOKENIZER.token_id("!")]
    assert output.append(ids) + output.finish() == "a!"
    assert output.num_tokens == 4  # "a", "!", "b", "a"; the token after the match is surplus
    assert output.num_text_tokens == 2


def test_held_back_tokens_count_once_their_text_is_out():
    output = OutputText(TOKENIZER, stop=StopStrings(["bb"]))
    b, a = TOKENIZER.token_id("b"), TOKENIZER.token_id("a")
    assert (output.append([a]), output.num_text_tokens) == ("a", 1)
    assert (output.append([b]), output.num_text_tokens) == ("", 1)
    assert (output.append([a]), output.num_text_tokens) == ("ba", 3)


def test_stop_strings_are_bounded_in_all():
    SamplingParams(stop=("a" * 4096,))
    with pytest.raises(InvalidRequestError, match="4096"):
        SamplingParams(stop=("a" * 4096, "b"))
