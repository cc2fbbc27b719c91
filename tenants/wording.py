"""Numbers with their nouns, as in `1 activity` and `2 activities`, and the first of many names, as in `a, b and 3 more`."""

from __future__ import annotations

from collections.abc import Sequence


def describe_count(number: float, one: str, several: str = "") -> str:
    """Return the number with its noun. `several`: the plural, if it is not `one` with an s."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {one if number == 1 else several or f'{one}s'}"


def name_some(names: Sequence[object], most: int) -> str:
    """Return the first names, and how many more there are."""
    named = ", ".join(map(str, names[:most]))
    return f"{named} and {len(names) - most} more" if len(names) > most else named
