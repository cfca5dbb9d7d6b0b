from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fakes.multilingual import MULTILINGUAL_LINES
from tests.fakes.vocabularies import CHATML_TEMPLATE, byte_level_metadata, sentencepiece_metadata
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from kvist.core.errors import CheckpointError, ConfigError, UnsupportedModelError
from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.huggingface_tokenizer import load_huggingface_tokenizer
from kvist.tokenization.loading import load_chat_template, load_tokenizer
from kvist.weights.checkpoint import Checkpoint, open_checkpoint


def write_folder(folder: Path, metadata: dict | None = None, *, bos: bool = False, **files: object) -> Path:
    """Write tokenizer.json of a small vocabulary, and each of `files` (name without .json) beside it."""
    backend = build_gguf_backend(GGUFVocabulary(metadata or byte_level_metadata([("h", "e")])))
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def as_checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(path=folder, kind="hf", metadata={}, tensors={}, identity="test")


def test_a_folder_gives_the_same_ids_as_the_gguf_form(tmp_path):
    vocabulary = GGUFVocabulary(byte_level_metadata([("h", "e")]))
    backend = build_gguf_backend(vocabulary)
    tokenizer = load_huggingface_tokenizer(write_folder(tmp_path))
    for line in MULTILINGUAL_LINES:
        assert tokenizer.encode(line) == backend.encode(line).ids
        assert tokenizer.decode(tokenizer.encode(line)) == line


def test_random_models_carry_the_same_tokenizer_in_both_forms(tiny_model):
    gguf, folder = (load_tokenizer(open_checkpoint(tiny_model("llama", form))) for form in ("f32", "hf"))
    assert folder.vocab_size <= gguf.vocab_size
    assert folder.traits.prefix_ids == gguf.traits.prefix_ids
    assert set(folder.eos_token_ids) <= set(gguf.eos_token_ids)
    for line in MULTILINGUAL_LINES:
        assert folder.encode(line) == gguf.encode(line)


def test_special_tokens_come_from_the_files_beside(tmp_path):
    folder = write_folder(
        tmp_path,
        bos=True,
        tokenizer_config={"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "pad_token": None},
        generation_config={"eos_token_id": [2, 0]},
        config={"eos_token_id": 2},
    )
    tokenizer = load_huggingface_tokenizer(folder / "tokenizer.json")
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == (2, 0)
    assert tokenizer.encode("he") == [1, *tokenizer.encode("he", add_special_tokens=False)]
    assert tokenizer.encode("<|im_start|>he").count(1) == 1
    assert tokenizer.traits.named_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_special_tokens_map_is_read_too(tmp_path):
    folder = write_folder(tmp_path, special_tokens_map={"eos_token": "<|im_end|>"})
    assert load_huggingface_tokenizer(folder).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("config", "adds_bos"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False}, False),
        ({"tokenizer_class": "LlamaTokenizer"}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False}, True),
    ],
)
def test_the_bos_switch_counts_for_the_classes_that_know_it(tmp_path, config, adds_bos):
    folder = write_folder(tmp_path, bos=True, tokenizer_config=config | {"bos_token": "<|im_start|>"})
    assert load_huggingface_tokenizer(folder).encode("he").count(1) == adds_bos


def test_sentencepiece_folders_decode_like_their_gguf_form(tmp_path):
    metadata = sentencepiece_metadata([("he", -1.0)])
    backend = build_gguf_backend(GGUFVocabulary(metadata))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_huggingface_tokenizer(tmp_path)
    assert tokenizer.adds_leading_space
    assert tokenizer.decode(tokenizer.encode(" he 😀")) == " he 😀"


def test_tokens_that_only_the_config_lists_are_added(tmp_path):
    vocab_size = load_huggingface_tokenizer(write_folder(tmp_path)).vocab_size
    listed = {
        str(vocab_size): {"content": "<|new|>", "special": True},
        "0": {"content": "<|endoftext|>", "special": True},
    }
    write_folder(tmp_path, tokenizer_config={"added_tokens_decoder": listed})
    tokenizer = load_huggingface_tokenizer(tmp_path)
    assert tokenizer.encode("<|new|>") == [vocab_size]
    assert tokenizer.is_special(vocab_size)


def test_what_cannot_be_read_is_refused_with_a_way_out(tmp_path):
    with pytest.raises(CheckpointError, match="--tokenizer"):
        load_huggingface_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"has a tokenizer\.model but no"):
        load_huggingface_tokenizer(tmp_path)
    for content in ("", "{", "[]", "{}", '{"model": {}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"no sound tokenizer\.json"):
            load_huggingface_tokenizer(tmp_path)


def test_damaged_side_files_are_checkpoint_errors(tmp_path):
    folder = write_folder(tmp_path)
    for content in ("{", "[]", '"x"'):
        (folder / "tokenizer_config.json").write_text(content)
        with pytest.raises(CheckpointError, match="tokenizer_config"):
            load_huggingface_tokenizer(folder)


def test_other_vocabularies_are_refused_by_name(tmp_path):
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        load_huggingface_tokenizer(tmp_path)


def load_template(folder: Path, path: str | None = None) -> str | None:
    checkpoint = as_checkpoint(folder)
    tokenizer = load_huggingface_tokenizer(folder)
    template = load_chat_template(checkpoint, tokenizer, path=path, now=lambda: datetime(2024, 1, 1, tzinfo=UTC))
    return None if template is None else template.source


def test_chat_templates_are_found_where_checkpoints_keep_them(tmp_path):
    assert load_template(write_folder(tmp_path)) is None
    write_folder(tmp_path, tokenizer_config={"chat_template": "in the config"})
    assert load_template(tmp_path) == "in the config"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "named"}]
    write_folder(tmp_path, tokenizer_config={"chat_template": named})
    assert load_template(tmp_path) == "named"
    write_folder(tmp_path, chat_template={"chat_template": "in json"})
    assert load_template(tmp_path) == "in json"
    (tmp_path / "chat_template.jinja").write_text("in a file")
    assert load_template(tmp_path) == "in a file"
    own = tmp_path / "own.jinja"
    own.write_text(CHATML_TEMPLATE)
    assert load_template(tmp_path, path=str(own)) == CHATML_TEMPLATE


def test_a_template_file_that_cannot_be_read_is_a_configuration_error(tmp_path):
    folder = write_folder(tmp_path)
    with pytest.raises(ConfigError, match="cannot read the chat template"):
        load_template(folder, path=str(tmp_path / "missing.jinja"))
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read the chat template"):
        load_template(folder, path=str(tmp_path / "binary.jinja"))


def test_a_file_that_makes_the_library_panic_is_a_checkpoint_error(tmp_path):
    file = write_folder(tmp_path, bos=True) / "tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"]["special_tokens"] = {}
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="no sound tokenizer"):
        load_huggingface_tokenizer(tmp_path)
