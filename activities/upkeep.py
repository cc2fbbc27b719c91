"""What rooms above the engine ask the keeper to look after in each of its passes. They say so when the process starts."""

from __future__ import annotations

from collections.abc import Callable

#: By a name for traces and logs. What a part returns says whether it has done anything.
PARTS: dict[str, Callable[[], object]] = {}


def look_after(name: str, part: Callable[[], object]) -> None:
    """Have the keeper call it in every pass: in any process, twice or by several at once. A name given again replaces what it stood for."""
    PARTS[name] = part
