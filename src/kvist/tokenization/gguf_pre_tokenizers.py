"""How each `tokenizer.ggml.pre` of GGUF cuts text into words before byte pairs are merged. Facts of the models."""

from __future__ import annotations

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _PUNCTUATION_AND_SPACE
_QWEN2 = _CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _PUNCTUATION_AND_SPACE
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Letters with case, as the model's own tokenizer lists them: hexadecimal code points and ranges.
_DEEPSEEK_LETTERS = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A "
    "38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF "
    "1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D "
    "1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F "
    "2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F "
    "A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)


def _character_class(ranges: str) -> str:
    """Write `ranges` as the inside of a regular expression's brackets."""
    return "".join("-".join(chr(int(end, 16)) for end in part.split("-")) for part in ranges.split())


_CJK_AND_MORE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizerRule:
    """`patterns` are applied one after the other: each match becomes a piece of its own, and so does what is between.

    ignore_merges: a word that is in the vocabulary is one token, even if no merges lead to it.
    adds_bos: what to assume when the file does not say whether a BOS is added.
    nfc: the model's tokenizer composes characters first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False


_RULE_GPT2 = PreTokenizerRule(patterns=(_GPT2,))
_RULE_SINGLE_DIGITS = PreTokenizerRule(patterns=(r"\p{N}", _GPT2))
_RULE_LLAMA3 = PreTokenizerRule(patterns=(_LLAMA3,), ignore_merges=True, adds_bos=True)
_RULE_LLAMA3_MERGED = PreTokenizerRule(patterns=(_LLAMA3,))
_RULE_QWEN2 = PreTokenizerRule(patterns=(_QWEN2,), nfc=True)

PRE_TOKENIZER_RULES: dict[str, PreTokenizerRule] = {
    "command-r": _RULE_SINGLE_DIGITS,
    "codeshell": _RULE_SINGLE_DIGITS,
    "dbrx": _RULE_LLAMA3_MERGED,
    "deepseek-coder": PreTokenizerRule(
        patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_MORE, r"\p{N}"),
    ),
    "deepseek-llm": PreTokenizerRule(
        patterns=(
            r"[\r\n]",
            rf"\s?[{_character_class(_DEEPSEEK_LETTERS)}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _CJK_AND_MORE,
            r"\p{N}+",
        ),
    ),
    "deepseek-r1-qwen": _RULE_QWEN2,
    "default": PreTokenizerRule(
        patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2.removesuffix(r"|\s+"), r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
    "falcon3": _RULE_LLAMA3,
    "gpt-2": _RULE_GPT2,
    "llama-bpe": _RULE_LLAMA3,
    "llama-v3": _RULE_LLAMA3,
    "llama3": _RULE_LLAMA3,
    "mpt": _RULE_GPT2,
    "olmo": _RULE_GPT2,
    "qwen2": _RULE_QWEN2,
    "refact": _RULE_SINGLE_DIGITS,
    "smaug-bpe": _RULE_LLAMA3_MERGED,
    "smollm": _RULE_SINGLE_DIGITS,
    "starcoder": _RULE_SINGLE_DIGITS,
    "tekken": PreTokenizerRule(patterns=(_TEKKEN,), ignore_merges=True, adds_bos=True),
}
