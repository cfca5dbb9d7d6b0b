"""The engines to compare, each in its weight formats and at its best settings. One entry is one row of the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import convert
from benchmarks.peers.engine import Engine, WorkerEngine
from benchmarks.peers.environments import LLAMA_CPP, llama_cpp_kernels, llama_cpp_tools, peers_folder, python_of
from benchmarks.peers.llama_cpp import LlamaCpp

# What keeps a library to AVX2, FMA and F16C on a processor that has more.
AVX2_ENVIRONMENT = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
NUM_SLOTS, SLOT_TOKENS = 32, 2048  # of a server: requests at once, and tokens of one at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all engines of one comparison have in common. isa: "auto" or "avx2"."""

    model: Path
    num_threads: int
    isa: str

    @property
    def environment(self) -> dict[str, str]:
        return AVX2_ENVIRONMENT if self.isa == "avx2" else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """How to start an engine's HTTP server on a port."""

    words: Callable[[int], list[str]]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """open: converts the model if need be and loads the engine. server: of those that have one. options: its flags.

    isas: instruction sets that it is compared on: those that it can be kept to, and where this is its best format.
    """

    engine: str
    weights: str
    options: tuple[str, ...] = ()
    open: Callable[[Settings], Engine]
    server: Callable[[Settings], ServerCommand] | None = None
    isas: tuple[str, ...] = ("auto", "avx2")

    @property
    def name(self) -> str:
        return " ".join((self.engine, self.weights, *self.options))


def log_path(name: str) -> Path:
    """Where an engine's messages go."""
    folder = peers_folder() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name.replace(' ', '-')}.txt"


def _worker(settings: Settings, engine: str, weights: str, arguments: Sequence[str]) -> Engine:
    python = Path(sys.executable) if engine == "kvist" else python_of(engine)
    return WorkerEngine(
        python, f"run_{engine}.py", arguments, environment=settings.environment, log=log_path(f"{engine} {weights}")
    )


def _kvist(*options: str, isas: tuple[str, ...] = ("auto", "avx2")) -> Peer:
    """options: flags of `kvist serve`, each with its value; --isa, --num-threads and the model are given besides."""

    def flags(settings: Settings) -> list[str]:
        return ["--num-threads", str(settings.num_threads), "--isa", settings.isa, *options]

    def server(settings: Settings) -> ServerCommand:
        command = [sys.executable, "-m", "kvist", "serve", str(settings.model), *flags(settings)]
        return ServerCommand(words=lambda port: [*command, "--port", str(port)], environment=dict(os.environ))

    def load(settings: Settings) -> Engine:
        name = " ".join((convert.AS_STORED, *options))
        return _worker(settings, "kvist", name, [str(settings.model), *flags(settings)])

    return Peer(engine="kvist", weights=convert.AS_STORED, options=options, open=load, server=server, isas=isas)


def _llama_cpp(weights: str) -> Peer:
    def load(settings: Settings) -> LlamaCpp:
        kernels = llama_cpp_kernels("avx2" if settings.isa == "avx2" else "native")
        environment = {**os.environ, "LD_LIBRARY_PATH": str(kernels)}
        return LlamaCpp(
            llama_cpp_tools(),
            convert.requantized(settings.model, weights),
            num_threads=settings.num_threads,
            environment=environment,
            version=LLAMA_CPP,
            log=log_path(f"llama_cpp {weights}"),
        )

    def server(settings: Settings) -> ServerCommand:
        engine = load(settings)
        return ServerCommand(
            words=lambda port: engine.server_command(NUM_SLOTS, SLOT_TOKENS, port), environment=engine.environment
        )

    return Peer(engine="llama.cpp", weights=weights, open=load, server=server)


def _openvino(weights: str, gguf_weights: str) -> Peer:
    def load(settings: Settings) -> Engine:
        folder = convert.openvino_model(settings.model, gguf_weights)
        return _worker(settings, "openvino", weights, [str(folder), str(settings.num_threads)])

    # Its wheels cap only the library below it, not its own kernels, and then fail to compile the model.
    return Peer(engine="OpenVINO GenAI", weights=weights, open=load, isas=("auto",))


def _vllm(weights: str, isa: str) -> Peer:
    def load(settings: Settings) -> Engine:
        folder = convert.huggingface_model(settings.model)
        return _worker(settings, "vllm", weights, [str(folder), weights, str(settings.num_threads)])

    def server(settings: Settings) -> ServerCommand:
        program = str(python_of("vllm").parent / "vllm")
        command = [program, "serve", str(convert.huggingface_model(settings.model)), "--dtype", weights]
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", **settings.environment}
        return ServerCommand(
            words=lambda port: [*command, "--max-model-len", "4096", "--port", str(port)], environment=environment
        )

    return Peer(engine="vLLM", weights=weights, open=load, server=server, isas=(isa,))


def _ctranslate2(weights: str) -> Peer:
    def load(settings: Settings) -> Engine:
        folder = convert.ctranslate2_model(settings.model, weights)
        return _worker(settings, "ctranslate2", weights, [str(folder), str(settings.num_threads)])

    return Peer(engine="CTranslate2", weights=weights, open=load)


def _transformers(weights: str, isa: str) -> Peer:
    def load(settings: Settings) -> Engine:
        folder = convert.huggingface_model(settings.model)
        return _worker(settings, "transformers", weights, [str(folder), weights, str(settings.num_threads)])

    return Peer(engine="transformers", weights=weights, open=load, isas=(isa,))


KVIST = _kvist()
PEERS: Sequence[Peer] = (
    KVIST,
    _kvist("--isa", "avx512", isas=("auto",)),  # the later --isa counts
    _kvist("--kv-cache-dtype", "int8"),
    *(_llama_cpp(weights) for weights in ("Q4_0", convert.AS_STORED, "Q8_0")),
    _openvino("int4", convert.AS_STORED),
    _openvino("int8", "Q8_0"),
    # bfloat16 is their fastest where the processor multiplies it, and slower than float32 on AVX2.
    _vllm("bfloat16", "auto"),
    _vllm("float32", "avx2"),
    _ctranslate2("int8"),
    _transformers("bfloat16", "auto"),
    _transformers("float32", "avx2"),
)
