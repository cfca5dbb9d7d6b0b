"""Pieces of answers that several routes share."""

from __future__ import annotations

from kvist.server.answer_shapes import TextOffsets


def test_offsets_count_the_characters_of_the_text_and_not_of_its_broken_pieces() -> None:
    pieces = ["日".encode()[:1], "日".encode()[1:2], "日".encode()[2:], "本語".encode(), b" ", "😀".encode(), b"p"]
    offsets = TextOffsets(10)
    assert [offsets.advance(piece) for piece in pieces] == [10, 10, 10, 11, 13, 14, 15]


def test_bytes_that_are_no_character_stand_as_one() -> None:
    offsets = TextOffsets()
    assert [offsets.advance(piece) for piece in (b"a", b"\xff", b"b", b"")] == [0, 1, 2, 3]
