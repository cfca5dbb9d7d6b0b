import json

from tokenizers import Tokenizer

from kvist.weights.tiny_tokenizer import gguf_tokenizer, hf_tokenizer, tiny_vocabulary

TEXT = "The water of people is über — été, 的。😀\n\n  def self():\treturn 1"


def test_any_text_comes_back_and_common_words_are_one_token() -> None:
    tokenizer = Tokenizer.from_str(json.dumps(hf_tokenizer(583, add_bos=True)["tokenizer.json"]))
    encoded = tokenizer.encode(TEXT)
    assert tokenizer.decode(encoded.ids) == TEXT
    assert encoded.tokens[0] == "<|bos|>"
    assert "Ġwater" in encoded.tokens


def test_a_larger_vocabulary_is_filled_with_distinct_words_that_decode() -> None:
    files = hf_tokenizer(262_144, add_bos=False)
    assert len(files["tokenizer.json"]["model"]["vocab"]) == 262_144
    tokens = gguf_tokenizer(262_144, add_bos=False)["tokenizer.ggml.tokens"]
    assert len(set(tokens)) == 262_144
    assert tokens[: len(tiny_vocabulary()[0])] == tiny_vocabulary()[0]
    assert tokens[-1].startswith("Ġ")
