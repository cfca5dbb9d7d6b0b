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
_DEEPSEEK_LETTERS = (  # letters with case, as the model's own tokenizer lists them
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CJK_AND_MORE = "[一-龥\u0800-一가-\ud7ff]+"


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
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
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
