"""The two ways in which vocabularies write bytes as text: GPT-2's byte alphabet and SentencePiece's marks."""

from __future__ import annotations

import re

SPACE_MARK = "\u2581"  # SentencePiece writes a space as this lower block
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's token for one byte


def _byte_alphabet() -> dict[int, str]:
    """Map each byte to its character: printable Latin-1 stands for itself, the rest moves to U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


CHARACTER_OF_BYTE = _byte_alphabet()
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}
