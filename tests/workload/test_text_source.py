"""Texts of a load: real sentences, as long as asked for, equal by name only."""

from __future__ import annotations

from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord


def source():
    return TextSource(lambda text: list(text.encode()), read_sentences())


def test_a_text_is_as_long_as_asked_and_its_parts_fit_together():
    texts = source()
    whole = texts.tokens(TextPart("a", 0, 300))
    assert len(whole) == 300
    assert whole[100:150] == texts.tokens(TextPart("a", 100, 50)) == source().tokens(TextPart("a", 100, 50))


def test_texts_of_other_names_differ_from_their_first_block_on():
    texts = source()
    starts = {tuple(texts.tokens(TextPart(f"t/{number}", 0, 16))) for number in range(2000)}
    assert len(starts) == 2000


def test_a_prompt_holds_the_answers_as_they_were_given():
    record = TraceRecord(
        index=1, arrival_s=0.0, prompt=(TextPart("a", 0, 3), AnswerPart(0), TextPart("b", 0, 2)), num_output_tokens=1
    )
    texts = source()
    prompt = texts.prompt(record, {0: [7, 8, 9]}.__getitem__)
    assert prompt == [*texts.tokens(TextPart("a", 0, 3)), 7, 8, 9, *texts.tokens(TextPart("b", 0, 2))]


def test_the_sentences_that_ship_are_real_text():
    sentences = read_sentences()
    assert len(sentences) > 1000
    assert all(len(sentence) > 20 for sentence in sentences)
