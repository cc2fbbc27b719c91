"""How far long work has come: a bar on a terminal, and nothing elsewhere, so that logs of scripts stay readable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")

WORTH_A_BAR = 20


def counted(items: Sequence[T], what: str, stream: Any) -> Iterator[T]:
    """The items, one after the other. The bar is drawn on `stream`, the command's stderr."""
    if len(items) < WORTH_A_BAR or not getattr(stream, "isatty", lambda: False)():
        yield from items
        return
    console = Console(file=getattr(stream, "_out", stream))
    yield from track(items, description=what, console=console, transient=True)
