"""The HTTP side: where it listens, who may ask, how much may wait."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = option("127.0.0.1", help="address to listen on")
    port: int = option(8000, help="port to listen on; 0 takes a free one", low=0, high=65535)
    api_key: tuple[str, ...] = option((), help="key(s) a client must send; also from KVIST_API_KEY")
    api_key_file: str | None = option(None, help="file with one API key a line")
    allowed_origins: tuple[str, ...] = option((), help="origins that browsers may call from (CORS); '*' for all")
    ssl_keyfile: str | None = option(None, help="TLS private key file")
    ssl_certfile: str | None = option(None, help="TLS certificate file")
    shutdown_timeout: float = option(30.0, help="seconds that running requests get on SIGTERM", low=0, unit="s")
    max_request_bytes: int = option(16 << 20, help="largest request body", low=1024, unit="bytes")
    engine_client: str = option(
        "process", help="where the engine runs: a process of its own or a thread", choices=("process", "thread")
    )
    vllm_metrics: bool = option(True, help="also export the vllm: metric names")
    lenient: bool = option(
        False, help="unknown request fields: a warning header instead of 400 (names them in x-kvist-ignored-fields)"
    )
    log_level: str = option("info", help="least severe log line", choices=("debug", "info", "warning", "error"))
