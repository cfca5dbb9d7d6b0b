"""Turns the one GGUF file into what each peer reads: requantized by llama.cpp, widened for those that take no GGUF.

Every function gives the path of what it makes, and makes it only once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.environments import llama_cpp_tools, peers_folder, python_of

AS_STORED = "as stored"
WORKERS = Path(__file__).parent / "workers"


def requantized(model: Path, weights: str) -> Path:
    """The GGUF file in another format of llama.cpp's, by its own tool; AS_STORED: the file itself."""
    if weights == AS_STORED:
        return model
    program = str(llama_cpp_tools() / "llama-quantize")
    return _once(
        peers_folder() / "models" / model.stem / f"{weights}.gguf",
        lambda path: [program, "--allow-requantize", str(model), str(path), weights],
    )


def openvino_model(model: Path, weights: str) -> Path:
    """Folder that OpenVINO GenAI reads, made from the GGUF file by OpenVINO's own reader."""
    source = requantized(model, weights)

    def command(folder: Path) -> list[str]:
        folder.mkdir()
        linked = folder / source.name
        os.symlink(source.absolute(), linked)
        return [str(python_of("openvino")), str(WORKERS / "to_openvino.py"), str(linked)]

    return _once(peers_folder() / "models" / model.stem / f"openvino-{weights}", command)


def huggingface_model(model: Path) -> Path:
    """Hugging Face folder of the weights in float32: the same numbers as the GGUF file's."""
    script = str(WORKERS / "to_huggingface.py")
    return _once(
        peers_folder() / "models" / model.stem / "huggingface",
        lambda folder: [str(python_of("transformers")), script, str(model), str(folder)],
    )


def ctranslate2_model(model: Path, weights: str) -> Path:
    source = huggingface_model(model)
    program = str(python_of("transformers").parent / "ct2-transformers-converter")
    return _once(
        peers_folder() / "models" / model.stem / f"ctranslate2-{weights}",
        lambda folder: [program, "--model", str(source), "--output_dir", str(folder), "--quantization", weights],
    )


def _once(path: Path, command: Callable[[Path], list[str]]) -> Path:
    """Run the command for a path beside `path`, and move what it made there when it is whole."""
    if not path.exists():
        part = path.with_name(path.name + ".part")
        if part.is_dir():
            shutil.rmtree(part)
        part.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(command(part), check=True)
        part.rename(path)
    return path
