"""Write docs/flags.md from the configuration dataclasses. With --check: only say whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from kvist.config.fields import ConfigField, config_fields
from kvist.config.foreign_flags import FOREIGN_FLAGS
from kvist.config.load import SERVE_SECTIONS

PAGE = Path(__file__).parent.parent / "docs" / "flags.md"

HEAD = """# Flags

Made by `scripts/flags_page.py` from `src/kvist/config/`; do not edit by hand. Ordered by task: [usage.md](usage.md).

`kvist serve` takes all of these; `chat`, `complete` and `inspect` take all but the server's. In a `--config` file the
section is the table and the flag is the key with underscores (`max_num_seqs = 64` under `[scheduler]`). A flag wins
over the file, the file over the environment (`KVIST_API_KEY`), the environment over the default. Sizes in bytes take
k, M, G and T (powers of 1024) or kB, MB, GB, TB (powers of 1000). Lists are comma-separated, or the flag is repeated.
"""

FOREIGN_HEAD = """
## Flags of other engines

Known but not needed or not available. The values named are accepted, because they ask for what kvist does anyway;
all others are refused with the reason.

| Flags | Accepted | Otherwise refused, because |
| --- | --- | --- |
"""


def page() -> str:
    parts = [HEAD]
    for section, config_class in SERVE_SECTIONS.items():
        parts.append(f"\n## {section}\n\n| Flag | Default | Range | Meaning |\n| --- | --- | --- | --- |\n")
        parts += [_row(field) for field in config_fields(config_class, section)]
    parts.append(FOREIGN_HEAD)
    for foreign in FOREIGN_FLAGS:
        spellings = ", ".join(f"`{name}`" for name in foreign.spellings)
        neutral = ", ".join("no value" if value == "" else f"`{value}`" for value in foreign.neutral_values)
        parts.append(f"| {spellings} | {neutral or '-'} | {foreign.reason} |\n")
    return "".join(parts)


def _row(field: ConfigField) -> str:
    spellings = [field.flag]
    if field.kind is bool:
        spellings.append("--no-" + field.flag.removeprefix("--"))
    spellings += [*field.option.aliases, *field.option.off_aliases]
    flags = ", ".join(f"`{name}`" for name in spellings)
    return f"| {flags} | {_default(field)} | {_range(field)} | {field.option.help} |\n"


def _default(field: ConfigField) -> str:
    if field.kind is bool:
        return "on" if field.default else "off"
    return "-" if field.default in (None, ()) else f"`{field.default}`"


def _range(field: ConfigField) -> str:
    option = field.option
    unit = f" {option.unit}" if option.unit else ""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.low is not None and option.high is not None:
        return f"{option.low:g} to {option.high:g}{unit}"
    if option.low is not None:
        return f"from {option.low:g}{unit}"
    return "text" if field.kind is str else "-"


def main(words: list[str]) -> int:
    if "--check" in words:
        if PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE} is stale: run .venv/bin/python scripts/flags_page.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
