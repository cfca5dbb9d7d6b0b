from pathlib import Path

from kvist.quantization.formats import FORMATS
from kvist.quantization.quantize import quantizable_formats
from kvist.weights.safetensors_reader import SAFETENSORS_FORMATS

PAGE = Path(__file__).parents[2] / "docs" / "weights.md"


def test_the_page_on_checkpoints_lists_every_format_as_it_is() -> None:
    rows = [
        f"| {each.name} | {each.bits_per_weight:g} | yes | {'yes' if each.name in SAFETENSORS_FORMATS else 'no'} "
        f"| {'yes' if each.name in quantizable_formats() else 'no'} |"
        for each in FORMATS.values()
    ]
    assert "\n".join(rows) in PAGE.read_text()
