"""Writes a GGUF file's weights, widened to float32, as a Hugging Face folder. Arguments: GGUF file, folder."""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

source, folder = Path(sys.argv[1]), sys.argv[2]
AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype="float32").save_pretrained(folder)
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
