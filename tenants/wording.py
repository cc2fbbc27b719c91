"""Numbers with their nouns, as in `1 activity` and `2 activities`."""

from __future__ import annotations


def describe_count(number: float, one: str, several: str = "") -> str:
    """Return the number with its noun. `several`: the plural, if it is not `one` with an s."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {one if number == 1 else several or f'{one}s'}"
