"""Fetches models of the Hugging Face Hub into its client's own cache. Interrupted downloads resume."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import TracebackType

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError: of whichever library it uses
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kvist.core.errors import DownloadError
from kvist.weights.checkpoint import MAX_JSON_BYTES
from kvist.weights.gguf_reader import SPLIT_NAME
from kvist.weights.hub_reference import HubReference, note_download
from kvist.weights.safetensors_reader import INDEX_NAME, SINGLE_NAME, read_json_file

Progress = Callable[[str, int, int | None], None]  # what, bytes done, bytes in all if known

_SIDE_FILES = ("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "chat_template*")


def download_from_hub(reference: HubReference, cache: Path, progress: Progress) -> Path:
    """Fetch what `reference` needs and return the path to open. Raises DownloadError saying what to do."""
    try:
        download = _Download(reference, progress)
        gguf_files = download.choose_gguf()
        files = gguf_files or download.choose_safetensors()
        for file in files:
            folder = download.fetch(file)
    except GatedRepoError as error:
        raise DownloadError(
            f"{reference.repo_id} is gated: accept its terms on its page, then set HF_TOKEN to your token"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise DownloadError(
            f"the hub has no {reference}: misspelt, or private (then set HF_TOKEN to your token)"
        ) from error
    except EntryNotFoundError as error:
        raise DownloadError(f"{reference}: {_first_line(error)}") from error
    except (HTTPError, HFValidationError, OSError) as error:
        raise DownloadError(f"cannot fetch {reference}: {_first_line(error)}. Try again: it resumes.") from error
    model = gguf_files[0] if gguf_files else ""
    note_download(reference, cache, folder, model, files)
    return folder / model


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class _Download:
    """One model at one commit: chooses the files it needs and fetches them, counting bytes over all of them."""

    def __init__(self, reference: HubReference, progress: Progress) -> None:
        self._reference = reference
        self._progress = progress
        info = HfApi().model_info(reference.repo_id, revision=reference.revision, files_metadata=True)
        self._commit = info.sha
        self._sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
        self._num_bytes_wanted = 0
        self._num_bytes_done = 0

    def choose_gguf(self) -> list[str]:
        """Return the GGUF files asked for, all parts of a split one; none if safetensors are to be taken."""
        reference = self._reference
        names = [name for name in self._sizes if name.endswith(".gguf") and "mmproj" not in name]
        models = [name for name in names if (match := SPLIT_NAME.match(name)) is None or int(match["number"]) == 1]
        if reference.file is not None:
            chosen = [name for name in models if name == reference.file]
        elif reference.quant is not None:
            chosen = [name for name in models if _has_quant(name, reference.quant)]
        elif "config.json" in self._sizes and any(
            name.endswith(".safetensors") and "/" not in name for name in self._sizes
        ):
            return []
        else:
            chosen = models
        if len(chosen) != 1:
            have = f"it has {', '.join(sorted(models)[:20])}" if models else "it has no GGUF file"
            problem = "more than one file fits" if chosen else "no file fits"
            raise DownloadError(
                f"{reference}: {problem}; {have}. "
                f"Choose with {reference.repo_id}:Q4_K_M or {reference.repo_id}/FILE.gguf"
            )
        match = SPLIT_NAME.match(chosen[0])
        if match is None:
            return self._want(chosen)
        start, end = f"{match['stem']}-", f"-of-{match['count']}.gguf"
        return self._want(sorted(name for name in names if name.startswith(start) and name.endswith(end)))

    def choose_safetensors(self) -> list[str]:
        """Return the files of a safetensors checkpoint, and those that go with it."""
        top = [name for name in self._sizes if "/" not in name]
        sides = [name for name in top if any(fnmatch(name, pattern) for pattern in _SIDE_FILES)]
        weights = [SINGLE_NAME] if SINGLE_NAME in top else [name for name in top if name.endswith(".safetensors")]
        if INDEX_NAME in top:
            index = read_json_file(self.fetch(INDEX_NAME) / INDEX_NAME, MAX_JSON_BYTES)
            weight_map = index.get("weight_map")
            listed = set(weight_map.values()) if isinstance(weight_map, dict) else set()
            weights = sorted(name for name in top if name in listed)
            sides.append(INDEX_NAME)
        return self._want(sides + weights)

    def _want(self, files: list[str]) -> list[str]:
        self._num_bytes_wanted = sum(self._sizes[file] for file in files)
        self._num_bytes_done = 0
        return files

    def fetch(self, file: str) -> Path:
        """Fetch one file, or find it in the cache, and return the folder of the checkpoint."""
        report, before = self._report, self._num_bytes_done

        class Bar:  # the part of tqdm's interface that the hub's client calls
            def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
                self._num_bytes = initial

            def update(self, num_bytes: float | None = 1) -> None:
                self._num_bytes += int(num_bytes or 0)
                report(before + self._num_bytes)

            def __enter__(self) -> Bar:
                return self

            def __exit__(
                self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
            ) -> None: ...

        path = hf_hub_download(
            self._reference.repo_id,
            file,
            revision=self._commit,
            tqdm_class=Bar,
        )
        self._num_bytes_done = before + self._sizes[file]
        report(self._num_bytes_done)
        return Path(path.removesuffix(file))

    def _report(self, num_bytes: int) -> None:
        if self._num_bytes_wanted:
            self._progress(str(self._reference), num_bytes, self._num_bytes_wanted)


def _has_quant(name: str, quant: str) -> bool:
    """True if `quant` stands in the name between separators: model-Q4_K_M.gguf, Q4_K_M/model-00001-of-00002.gguf."""
    pattern = rf"(^|[-./_]){re.escape(quant)}($|[-./](?!.*/))"
    return re.search(pattern, name.removesuffix(".gguf"), re.IGNORECASE) is not None
