from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.vocabularies import byte_level_metadata, sentencepiece_metadata

from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.incremental_detokenizer import IncrementalDetokenizer
from kvist.tokenization.tokenizer import Tokenizer


def make_tokenizer(metadata: dict) -> Tokenizer:
    vocabulary = GGUFVocabulary(metadata)
    return Tokenizer(build_gguf_backend(vocabulary), vocabulary.traits())


BYTE_LEVEL = make_tokenizer(byte_level_metadata([("h", "e"), ("Ġ", "he"), ("ð", "Ł")], user_defined=["<é tool>"]))
SENTENCEPIECE = make_tokenizer(
    sentencepiece_metadata([("▁h", -1.0), ("he", -2.0), ("▁he", -3.0)], user_defined=["\n\n", "▁▁"])
)
TEXTS = ["hello hé", "😀😀 👩‍👩‍👧", "你好, 世界", "e\u0301a\u0308", "  he  he", "\ud7ff\uffff\U0010ffff", "\x00\n\n"]


def token_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Whole texts, single tokens (thus torn characters and lone bytes) and ids beyond the vocabulary, in any order."""
    pieces = st.one_of(
        st.sampled_from([tokenizer.encode(text) for text in TEXTS]),
        st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=4),
        st.text(max_size=8).map(tokenizer.encode),
    )
    return st.lists(pieces, max_size=5).map(lambda parts: [index for part in parts for index in part])


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte_level", "sentencepiece"])
@settings(deadline=None, max_examples=150)
@given(data=st.data(), skip_special=st.booleans(), strip=st.booleans())
def test_joined_deltas_equal_the_full_decode(tokenizer, data, skip_special, strip):
    ids = data.draw(token_ids(tokenizer))
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special, strip_leading_space=strip)

    deltas = [detokenizer.append(index) for index in ids]
    joined = "".join(deltas) + detokenizer.finish()

    assert joined == tokenizer.decode(ids, skip_special_tokens=skip_special, strip_leading_space=strip)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte_level", "sentencepiece"])
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_text_never_lags_more_than_three_bytes(tokenizer, data):
    ids = data.draw(token_ids(tokenizer))
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = ""
    for count, index in enumerate(ids, start=1):
        shown += detokenizer.append(index)
        full = tokenizer.decode(ids[:count], strip_leading_space=False)
        assert full.startswith(shown)
        assert len(full) - len(shown) <= 3
        assert set(full[len(shown) :]) <= {"\ufffd"}


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte_level", "sentencepiece"])
def test_a_character_torn_over_tokens_appears_whole(tokenizer):
    ids = tokenizer.encode("😀", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    deltas = [detokenizer.append(index) for index in ids]
    assert [delta for delta in deltas if delta.strip()] == ["😀"]


def test_invalid_bytes_cannot_stall_the_stream():
    continuation = BYTE_LEVEL.encode("é")[1]  # a continuation byte without its start
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert [detokenizer.append(continuation) for _ in range(3)] == ["\ufffd"] * 3


def test_an_incomplete_character_is_flushed_at_the_end():
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert detokenizer.extend(BYTE_LEVEL.encode("a😀")[:-1]) == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_added_tokens_keep_their_characters():
    ids = BYTE_LEVEL.encode("a<é tool>b")
    assert len(ids) == 3
    assert IncrementalDetokenizer(BYTE_LEVEL).extend(ids) == "a<é tool>b"


def test_a_continuation_keeps_its_leading_space_and_an_answer_drops_it():
    ids = SENTENCEPIECE.encode("he", add_special_tokens=False)
    assert IncrementalDetokenizer(SENTENCEPIECE).extend(ids) == " he"
    assert IncrementalDetokenizer(SENTENCEPIECE, strip_leading_space=True).extend(ids) == "he"
