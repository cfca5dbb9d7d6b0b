"""The number formats of weights as they lie in files: names, ids and block sizes. No arithmetic.

A tensor's innermost axis is cut into blocks of `block_elements` numbers that share their scales. Names and ids are
those of GGUF files; Hugging Face checkpoints use the three plain ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.core.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How `block_elements` consecutive numbers are stored in `block_bytes` bytes."""

    name: str
    ggml_type: int
    block_elements: int
    block_bytes: int

    @property
    def is_plain(self) -> bool:
        """True for one number per block: no scales."""
        return self.block_elements == 1

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_elements

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of `num_elements` numbers, which must fill whole blocks."""
        num_blocks, rest = divmod(num_elements, self.block_elements)
        if rest:
            raise ValueError(f"{num_elements} numbers do not fill whole {self.name} blocks of {self.block_elements}")
        return num_blocks * self.block_bytes


F32 = WeightFormat("F32", 0, 1, 4)
F16 = WeightFormat("F16", 1, 1, 2)
BF16 = WeightFormat("BF16", 30, 1, 2)
Q4_0 = WeightFormat("Q4_0", 2, 32, 18)
Q4_1 = WeightFormat("Q4_1", 3, 32, 20)
Q5_0 = WeightFormat("Q5_0", 6, 32, 22)
Q5_1 = WeightFormat("Q5_1", 7, 32, 24)
Q8_0 = WeightFormat("Q8_0", 8, 32, 34)
Q2_K = WeightFormat("Q2_K", 10, 256, 84)
Q3_K = WeightFormat("Q3_K", 11, 256, 110)
Q4_K = WeightFormat("Q4_K", 12, 256, 144)
Q5_K = WeightFormat("Q5_K", 13, 256, 176)
Q6_K = WeightFormat("Q6_K", 14, 256, 210)
Q8_K = WeightFormat("Q8_K", 15, 256, 292)
IQ4_NL = WeightFormat("IQ4_NL", 20, 32, 18)

FORMATS = {
    each.name: each
    for each in (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ4_NL)
}
_BY_GGML_TYPE = {each.ggml_type: each for each in FORMATS.values()}

# Known by name only, so that a refusal can say what the file holds.
_UNSUPPORTED_GGML_TYPES = {
    9: "Q8_1", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


def format_of_ggml_type(ggml_type: int) -> WeightFormat:
    """Return the format with this GGUF type id. Raises UnsupportedModelError naming what is supported."""
    found = _BY_GGML_TYPE.get(ggml_type)
    if found is None:
        name = _UNSUPPORTED_GGML_TYPES.get(ggml_type, f"unknown type {ggml_type}")
        raise UnsupportedModelError(f"weights in {name} cannot be read; supported are {', '.join(FORMATS)}")
    return found
