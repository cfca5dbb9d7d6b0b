from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.multilingual import MULTILINGUAL_LINES
from tests.fakes.naive_tokenizers import byte_level_encode, sentencepiece_encode
from tests.fakes.vocabularies import NORMAL, byte_level_metadata, sentencepiece_metadata

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.tokenization import gguf_tokenizer
from kvist.tokenization.gguf_pre_tokenizers import PRE_TOKENIZER_RULES
from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.loading import load_tokenizer
from kvist.tokenization.tokenizer import Tokenizer
from kvist.tokenization.tokenizer_cache import build_cached
from kvist.weights.checkpoint import open_checkpoint


def make_tokenizer(metadata: dict) -> Tokenizer:
    vocabulary = GGUFVocabulary(metadata)
    return Tokenizer(build_gguf_backend(vocabulary), vocabulary.traits())


@st.composite
def sentencepiece_vocabularies(draw: st.DrawFn) -> dict:
    """Pieces grown as training grows them, from two known ones, with falling scores."""
    known = list("abc▁")
    pieces = []
    for left, right in draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=12)):
        piece = known[left % len(known)] + known[right % len(known)]
        if piece not in known and len(piece) < 7:
            known.append(piece)
            pieces.append(piece)
    return sentencepiece_metadata([(piece, -float(i)) for i, piece in enumerate(pieces)], characters="abc▁")


@settings(deadline=None, max_examples=150)
@given(metadata=sentencepiece_vocabularies(), text=st.text(alphabet="abc é😀", min_size=1, max_size=16))
def test_sentencepiece_merges_by_score_like_a_naive_encoder(metadata, text):
    vocabulary = GGUFVocabulary(metadata)
    kinds = zip(vocabulary.tokens, vocabulary.scores, vocabulary.types, strict=True)
    scores = {piece: score for piece, score, kind in kinds if kind == NORMAL}
    expected = sentencepiece_encode("▁" + text.replace(" ", "▁"), vocabulary.ids, scores)

    tokenizer = make_tokenizer(metadata)

    assert tokenizer.encode(text, add_special_tokens=False) == expected
    assert tokenizer.decode(expected) == text


def test_sentencepiece_adds_its_space_and_bos_as_the_file_says():
    scored = [("he", -1.0), ("▁he", -2.0)]
    usual = make_tokenizer(sentencepiece_metadata(scored))
    assert usual.encode("he") == [1, usual.token_id("▁he")]
    bare = make_tokenizer(
        sentencepiece_metadata(scored, add_space_prefix=False, add_bos_token=False, add_eos_token=True)
    )
    assert bare.encode("he") == [bare.token_id("he"), 2]
    assert bare.num_special_tokens_to_add() == 1


def test_sentencepiece_merges_count_more_than_scores():
    metadata = sentencepiece_metadata([("he", -7.0), ("el", -7.0)], merges=["e l", "h e"])
    tokenizer = make_tokenizer(metadata)
    assert [tokenizer.token_text(index) for index in tokenizer.encode("hel")] == ["<s>", " ", "h", "el"]


@pytest.mark.parametrize("character", ["a", " "])
def test_a_megabyte_of_anything_is_encoded(character):
    assert len(TOKENIZERS["llama-bpe"].encode(character * 1_000_000, add_special_tokens=False)) == 1_000_000


def test_sentencepiece_user_defined_runs_of_spaces_are_one_token():
    tokenizer = make_tokenizer(
        sentencepiece_metadata(user_defined=["▁▁", "▁▁▁▁", "\n\n"], add_space_prefix=False, add_bos_token=False)
    )
    ids = tokenizer.encode("a      b\n\n")
    assert [tokenizer.token_text(index) for index in ids] == ["a", "    ", "  ", "b", "\n\n"]
    assert tokenizer.decode(ids) == "a      b\n\n"


def numeric_or_word_pieces(text: str) -> list[str]:
    """Cut as GPT-2 does, with each digit apart: the pre-tokenizer called smollm, written with plain loops."""
    pieces: list[str] = []
    run = ""
    for character in [*text, ""]:
        if not character or unicodedata.category(character)[0] == "N":
            pieces += _gpt2_words(run)
            pieces += [character] if character else []
            run = ""
        else:
            run += character
    return pieces


def _gpt2_words(text: str) -> list[str]:
    words: list[str] = []
    while text:
        length = _first_word_length(text)
        words.append(text[:length])
        text = text[length:]
    return words


def _first_word_length(text: str) -> int:
    for contraction in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        if text.startswith(contraction):
            return len(contraction)
    offset = 1 if text[0] == " " and len(text) > 1 and not text[1].isspace() else 0
    if not text[offset].isspace():
        is_letter = unicodedata.category(text[offset])[0] == "L"
        end = offset
        while end < len(text) and not text[end].isspace() and (unicodedata.category(text[end])[0] == "L") == is_letter:
            end += 1
        return end
    end = 0
    while end < len(text) and text[end].isspace():
        end += 1
    return end if end == len(text) or end == 1 else end - 1


@pytest.mark.model
def test_the_default_models_tokenizer_equals_a_naive_one_on_many_scripts(default_model: Path):
    checkpoint = open_checkpoint(default_model)
    tokenizer = load_tokenizer(checkpoint)
    vocabulary = GGUFVocabulary(checkpoint.metadata)
    ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}
    text = "\n".join(MULTILINGUAL_LINES)
    for line in [*MULTILINGUAL_LINES, text]:
        ids = tokenizer.encode(line)
        assert ids == byte_level_encode(line, numeric_or_word_pieces, vocabulary.ids, ranks)
        assert tokenizer.decode(ids) == line


@pytest.mark.model
def test_the_default_model_ends_turns_and_texts(default_model: Path):
    tokenizer = load_tokenizer(open_checkpoint(default_model))
    assert {tokenizer.token_text(index) for index in tokenizer.eos_token_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert tokenizer.encode("<|im_start|>user") != tokenizer.encode("<|im_start|>user", parse_special=False)
    assert tokenizer.decode(tokenizer.encode("<|im_end|>", parse_special=False)) == "<|im_end|>"


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=40))
@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "gpt-2", "tekken", "deepseek-llm", "deepseek-coder", "default"])
def test_byte_level_decode_undoes_encode(pre, text):
    tokenizer = TOKENIZERS[pre]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False, parse_special=False)) == text


TOKENIZERS = {
    pre: make_tokenizer(byte_level_metadata([("Ġ", "a"), ("a", "b"), ("1", "2"), ("12", "3")], pre=pre))
    for pre in PRE_TOKENIZER_RULES
}


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "x 123", ["x", " ", "1", "2", "3"]),
        ("gpt-2", "x 123", ["x", " ", "123"]),
        ("llama-bpe", "x 1234", ["x", " ", "123", "4"]),
        ("qwen2", "x 123", ["x", " ", "1", "2", "3"]),
        ("tekken", "x 123", ["x", " ", "1", "2", "3"]),
        ("deepseek-llm", "x 123", ["x", " ", "123"]),
        ("deepseek-coder", "x 123", ["x", " ", "1", "2", "3"]),
        ("default", "x 123", ["x", " ", "123"]),
        ("starcoder", "1a ab", ["1", "a", " a", "b"]),
    ],
)
def test_pre_tokenizers_cut_numbers_as_their_models_do(pre, text, pieces):
    tokenizer = TOKENIZERS[pre]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [tokenizer.token_text(index) for index in ids] == pieces


def test_llama3_style_files_get_their_bos_unless_they_say_otherwise():
    assert make_tokenizer(byte_level_metadata(pre="llama-bpe")).encode("a")[0] == 1
    assert make_tokenizer(byte_level_metadata(pre="llama-bpe", add_bos_token=False)).traits.prefix_ids == ()
    assert make_tokenizer(byte_level_metadata(pre="qwen2")).traits.prefix_ids == ()


def test_well_known_ends_of_turns_are_found_whatever_the_file_lists():
    metadata = byte_level_metadata(
        control=("<|endoftext|>", "<s>", "</s>", "<|eot_id|>"), user_defined=["<end_of_turn>"]
    )
    tokenizer = make_tokenizer(metadata)
    ends = {tokenizer.token_text(index) for index in tokenizer.eos_token_ids}
    assert ends == {"</s>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>"}


def test_qwen2_composes_characters_first():
    assert TOKENIZERS["qwen2"].encode("e\u0301") == TOKENIZERS["qwen2"].encode("é")


def test_an_unknown_pre_tokenizer_is_refused_with_the_list():
    for metadata in (byte_level_metadata(pre="qwen"), byte_level_metadata(pre=7)):
        with pytest.raises(UnsupportedModelError, match=r"known are .*llama-bpe.*--tokenizer"):
            make_tokenizer(metadata)


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": None},
        {"tokens": []},
        {"tokens": "abc"},
        {"tokens": [1, 2]},
        {"token_type": [1]},
        {"merges": None},
        {"merges": ["ab"]},
        {"merges": ["x y"]},
        {"merges": [3]},
        {"bos_token_id": 10**6},
        {"eos_token_id": "2"},
        {"add_bos_token": "yes"},
    ],
)
def test_damaged_metadata_is_a_checkpoint_error(damage):
    metadata = byte_level_metadata([("a", "b")]) | {f"tokenizer.ggml.{key}": value for key, value in damage.items()}
    with pytest.raises(CheckpointError):
        make_tokenizer(metadata)


def test_another_kind_of_tokenizer_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="bert"):
        make_tokenizer(byte_level_metadata(model="bert"))


def test_of_tokens_written_alike_the_first_counts():
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"].append("a")
    metadata["tokenizer.ggml.token_type"].append(NORMAL)
    tokenizer = make_tokenizer(metadata)
    first, last = tokenizer.encode("a")[0], len(metadata["tokenizer.ggml.tokens"]) - 1
    assert first < last
    assert tokenizer.vocab_size == last + 1
    assert tokenizer.decode([first, last]) == "a"


def test_ids_outside_the_vocabulary_are_empty_text():
    tokenizer = TOKENIZERS["smollm"]
    assert tokenizer.decode([-1, 10**9, *tokenizer.encode("a")]) == "a"


class TestCache:
    METADATA = sentencepiece_metadata([("▁h", -1.0), ("▁he", -2.0)])

    def test_a_stored_tokenizer_is_not_built_again(self, tmp_path, monkeypatch):
        vocabulary = GGUFVocabulary(self.METADATA)
        first = build_cached(vocabulary, tmp_path)
        monkeypatch.setattr(gguf_tokenizer, "derive_merges", lambda _: pytest.fail("built again"))
        assert build_cached(vocabulary, tmp_path).to_str() == first.to_str()

    def test_a_damaged_file_is_built_again(self, tmp_path):
        vocabulary = GGUFVocabulary(self.METADATA)
        first = build_cached(vocabulary, tmp_path)
        for content in (b"", b"{", b"\xff" * 100):
            for file in tmp_path.iterdir():
                file.write_bytes(content)
            assert build_cached(vocabulary, tmp_path).to_str() == first.to_str()
        assert len(list(tmp_path.iterdir())) == 1

    def test_other_scores_are_another_tokenizer(self, tmp_path):
        build_cached(GGUFVocabulary(self.METADATA), tmp_path)
        build_cached(GGUFVocabulary(sentencepiece_metadata([("▁h", -2.0), ("▁he", -1.0)])), tmp_path)
        assert len(list(tmp_path.iterdir())) == 2

    def test_a_folder_that_cannot_be_written_only_costs_time(self, tmp_path):
        occupied = tmp_path / "file"
        occupied.write_text("")
        assert build_cached(GGUFVocabulary(self.METADATA), occupied / "tokenizers").get_vocab_size() > 256


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 2**32), st.floats(), st.text(max_size=3), st.just(["a", 1, None, []])
)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
@pytest.mark.parametrize("make", [byte_level_metadata, sentencepiece_metadata])
def test_hostile_metadata_raises_nothing_but_kvists_errors(make, data):
    metadata = make()
    key = data.draw(st.sampled_from(sorted(metadata)))
    value = metadata[key]
    if isinstance(value, list) and data.draw(st.booleans()):
        metadata[key] = [*value[:5], data.draw(junk), *value[6:]]
    else:
        metadata[key] = data.draw(junk)
    try:
        tokenizer = make_tokenizer(metadata)
    except CheckpointError:
        return
    tokenizer.decode(tokenizer.encode("a <|im_end|> é"))
