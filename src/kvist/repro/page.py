"""docs/results.md and the HTML report, from the documents that reproductions write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvist.repro.brief import brief_lines
from kvist.repro.registry import REPROS
from kvist.repro.result import from_document
from kvist.repro.table import markdown_lines

Document = Mapping[str, Any]  # Any: JSON


def results_page(documents: Sequence[Document]) -> str:
    """The page, from the documents in their order."""
    return "\n".join(_lines(documents)) + "\n"


def _lines(documents: Sequence[Document]) -> Iterator[str]:
    yield "# Published results, measured here"
    yield ""
    yield from INTRODUCTION
    for document in documents:
        result = from_document(document)
        yield ""
        yield f"## {result.title}"
        yield ""
        yield f"`kvist repro {result.name}`. {origin(document)}"
        yield ""
        yield from markdown_lines(result)
    missing = [name for name in REPROS if name not in {document["name"] for document in documents}]
    if missing:
        yield ""
        yield "## Not run for this page"
        yield ""
        yield f"There is no stored result of {', '.join(f'`kvist repro {name}`' for name in missing)}."
    yield ""
    yield from brief_lines()


def origin(document: Document) -> str:
    """Where the numbers come from, in a sentence."""
    machine = document["machine"]
    cores = machine["num_cores_granted"]
    return (
        f"Measured on {machine['cpu']}, {cores} cores granted, executor {document['executor']}, load average "
        f"{machine['load_average_1_min']} at the end; commit {document['commit'][:12]}; {document['date'][:10]}."
    )


INTRODUCTION = (
    "Each table is a real run of this engine by `kvist repro NAME`; `kvist repro all` writes this page anew. A",
    "baseline is this same engine with one idea taken out, at its best setting, so a ratio shows what the idea gives",
    "here and now; the published ratio was against other systems, on other hardware. Where the two differ the set-up",
    'column says why. "The brief" is the survey whose claims this engine set out to check; see the end of the page.',
    "",
    "A run marked *quick* is a minute's worth of requests: it shows that the effect is there, not how large it is. A",
    "load average above the number of cores means that the machine was doing other work too: ratios of interleaved",
    "runs hold better than absolute times.",
)
