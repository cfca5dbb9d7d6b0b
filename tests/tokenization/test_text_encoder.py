from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.vocabularies import CHATML_TEMPLATE, byte_level_metadata, sentencepiece_metadata

from kvist.core.errors import InvalidRequestError, RequestTooLongError
from kvist.tokenization.chat_template import ChatTemplate
from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.text_encoder import ChatOptions, TextEncoder
from kvist.tokenization.tokenizer import Tokenizer

INST_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m['content'] + ' [/INST]' if m['role'] == 'user' "
    "else m['content'] + eos_token }}{% endfor %}"
)
CHATML_WITH_BOS = "{{ bos_token }}" + CHATML_TEMPLATE


def make_encoder(metadata: dict, template: str | None, *, max_prompt_tokens: int = 1000) -> TextEncoder:
    vocabulary = GGUFVocabulary(metadata)
    tokenizer = Tokenizer(build_gguf_backend(vocabulary), vocabulary.traits())
    named = tokenizer.traits.named_tokens
    chat = template and ChatTemplate(
        template,
        named_tokens=named,
        now=lambda: datetime(2024, 1, 1, tzinfo=UTC),
        origin="test",
    )
    return TextEncoder(
        tokenizer, chat or None, max_prompt_tokens=max_prompt_tokens, vocab_size=tokenizer.vocab_size + 8
    )


CHATML = make_encoder(byte_level_metadata([("h", "e")]), CHATML_TEMPLATE)
INST = make_encoder(sentencepiece_metadata([("▁he", -1.0)]), INST_TEMPLATE)
USER = [{"role": "user", "content": "he"}]


def test_messages_get_the_ids_of_the_rendered_text():
    ids = CHATML.encode_messages(USER, ChatOptions())
    assert ids == CHATML.tokenizer.encode("<|im_start|>user\nhe<|im_end|>\n<|im_start|>assistant\n")
    assert CHATML.render_messages(USER, ChatOptions()) == CHATML.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("add_special_tokens", [False, True])
@pytest.mark.parametrize("template", [CHATML_TEMPLATE, CHATML_WITH_BOS])
def test_a_rendered_chat_never_has_two_bos(template, add_special_tokens):
    metadata = byte_level_metadata(add_bos_token=True, bos_token_id=0)
    encoder = make_encoder(metadata, template)
    for messages in (USER, [{"role": "user", "content": "<|endoftext|>"}]):
        ids = encoder.encode_messages(messages, ChatOptions(add_special_tokens=add_special_tokens))
        assert ids.count(0) == (1 if template == CHATML_WITH_BOS or add_special_tokens else 0)


def test_a_sentencepiece_chat_has_one_bos():
    assert INST.tokenizer.traits.prefix_ids == (1,)
    for add_special_tokens in (False, True):
        ids = INST.encode_messages(USER, ChatOptions(add_special_tokens=add_special_tokens))
        assert ids.count(1) == 1
        assert ids[0] == 1


def test_a_plain_prompt_gets_its_bos_once():
    assert INST.encode_text("he")[0] == 1
    assert INST.encode_text("<s>he").count(1) == 1
    assert INST.encode_text("he", add_special_tokens=False).count(1) == 0


@settings(deadline=None, max_examples=100)
@given(
    contents=st.lists(
        st.text(max_size=5).map(lambda text: text.replace("<", "")) | st.sampled_from(["<|im_end|>", "a<|im_start|>b"]),
        min_size=1,
        max_size=3,
    )
)
def test_a_message_cannot_open_or_close_a_turn(contents):
    content = "".join(contents)
    ids = CHATML.encode_messages([{"role": "user", "content": content}], ChatOptions())
    start, end = 1, 2
    assert [index for index in ids if CHATML.tokenizer.is_special(index)] == [start, end, start]
    assert CHATML.tokenizer.decode(ids, skip_special_tokens=False) == (
        f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("held", ["\ufdd0\ufdd1\ufdd2\ufdd3", "".join(map(chr, range(0xFDD0, 0xFDF0)))])
def test_a_message_may_hold_noncharacters_beside_control_tokens(held):
    content = f"{held}<|im_end|>"
    ids = CHATML.encode_messages([{"role": "user", "content": content}], ChatOptions())
    assert content in CHATML.tokenizer.decode(ids, skip_special_tokens=False)
    assert sum(map(CHATML.tokenizer.is_special, ids)) == 3


def test_control_tokens_in_a_sentencepiece_message_are_text():
    ids = INST.encode_messages([{"role": "user", "content": "he</s>[/INST]"}], ChatOptions())
    special = [index for index in ids if INST.tokenizer.is_special(index)]
    assert special == [1, 3, 4]  # BOS, [INST], [/INST]


def test_an_answer_after_a_control_token_is_a_text_of_its_own():
    tokenizer = INST.tokenizer
    assert tokenizer.starts_text_after(INST.encode_messages(USER, ChatOptions()))  # ends with [/INST]
    assert tokenizer.starts_text_after([])
    assert not tokenizer.starts_text_after(INST.encode_text("he"))
    assert not CHATML.tokenizer.starts_text_after([1])  # no leading space in this kind of vocabulary


def test_without_a_template_chat_is_refused_and_completion_works():
    encoder = make_encoder(byte_level_metadata(), None)
    with pytest.raises(InvalidRequestError, match="no chat template"):
        encoder.encode_messages(USER, ChatOptions())
    assert encoder.encode_text("he")


def test_truncation_keeps_the_last_tokens():
    ids = CHATML.encode_text("abcdef")
    assert CHATML.encode_text("abcdef", truncate_prompt_tokens=2) == ids[-2:]
    assert CHATML.check_token_ids(ids, truncate_prompt_tokens=3) == ids[-3:]
    assert CHATML.encode_text("abcdef", truncate_prompt_tokens=-1) == ids
    for bad in (0, -2, 1001):
        with pytest.raises(InvalidRequestError, match="truncate_prompt_tokens"):
            CHATML.encode_text("a", truncate_prompt_tokens=bad)


def test_token_ids_are_taken_as_they_are_if_the_model_has_them():
    top = CHATML.tokenizer.vocab_size + 7
    assert INST.check_token_ids([5, 6]) == [5, 6]
    assert CHATML.check_token_ids([0, top]) == [0, top]
    for bad in (-1, top + 1, True, "1", 1.0):
        with pytest.raises(InvalidRequestError, match="not in the vocabulary"):
            CHATML.check_token_ids([bad])


def test_text_that_cannot_fit_is_refused_unseen():
    encoder = make_encoder(byte_level_metadata(), None, max_prompt_tokens=4)
    with pytest.raises(RequestTooLongError, match="characters"):
        encoder.encode_text("a" * 100_000)


def test_lone_surrogates_are_refused():
    with pytest.raises(InvalidRequestError, match="surrogates"):
        CHATML.encode_text("a\ud800")
    with pytest.raises(InvalidRequestError, match="surrogates"):
        CHATML.encode_messages([{"role": "user", "content": "\ud800"}], ChatOptions())
