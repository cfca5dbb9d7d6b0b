"""Check (or with --fix mend) trailing space, the newline at the end and the size of files; TOML files must parse.

Arguments: files; none means every file that git tracks.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

MAX_BYTES = 1_000_000  # weights and recordings do not belong into the repository
EXACT_SUFFIXES = (".gguf", ".json", ".jsonl", ".gz", ".png", ".safetensors")  # data: only the size is checked


def faults_in(path: Path, *, fix: bool) -> list[str]:
    """What is wrong with one file, after mending what can be mended."""
    data = path.read_bytes()
    if len(data) > MAX_BYTES:
        return [f"{path}: {len(data)} bytes, more than {MAX_BYTES}"]
    if path.suffix in EXACT_SUFFIXES or b"\0" in data:
        return []
    lines = data.split(b"\n")
    clean = b"\n".join(line.rstrip(b" \t\r") for line in lines).rstrip(b"\n")
    clean = clean + b"\n" if clean else b""
    faults = []
    if clean != data:
        if fix:
            path.write_bytes(clean)
        else:
            numbers = [str(i) for i, line in enumerate(lines, 1) if line != line.rstrip(b" \t\r")]
            where = f"trailing space in lines {', '.join(numbers)}" if numbers else "must end in one newline"
            faults.append(f"{path}: {where}")
    if path.suffix == ".toml":
        try:
            tomllib.loads(clean.decode())
        except tomllib.TOMLDecodeError as error:
            faults.append(f"{path}: {error}")
    return faults


def main(words: list[str]) -> int:
    fix = "--fix" in words
    names = [word for word in words if word != "--fix"]
    if not names:
        names = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines()
    paths = [path for path in map(Path, names) if path.is_file()]
    faults = [fault for path in paths for fault in faults_in(path, fix=fix)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
