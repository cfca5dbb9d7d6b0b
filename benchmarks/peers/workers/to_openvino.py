"""Writes a GGUF file as an OpenVINO model beside it, weights as they are. Argument: GGUF file."""

from __future__ import annotations

import sys

import openvino_genai

openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
