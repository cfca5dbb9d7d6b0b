"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(size: float) -> str:
    """Three significant digits in a power of 1024, as in "1.46 GiB"."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000:  # 1000, not 1024: four digits read worse than a fraction
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"


def format_count(count: float) -> str:
    """Three significant digits in a power of 1000, as in "134 M"."""
    unit = ""
    for larger in ("k", "M", "B", "T"):
        if abs(count) < 1000:
            break
        count, unit = count / 1000, larger
    return f"{count:.0f}" if not unit else f"{count:.3g} {unit}"
