"""Tables for people: drawn on a terminal, plain aligned text elsewhere, so that other programs can read them.

What is shown comes from agents and clients: control characters are written as escapes, and nothing in it is taken for markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenants.audit.recording import one_line

LONGEST_CELL = 120
EMPTY = "-"

Row = Sequence[Any]


def table(stream: Any, head: Sequence[str], rows: Sequence[Row]) -> None:
    """Write the table to the stream of a command."""
    cells = [[in_cell(value) for value in row] for row in rows]
    if _is_terminal(stream):
        _draw(stream, head, cells)
    else:
        _align(stream, head, cells)
    if not rows:
        stream.write("(none)")


def facts(stream: Any, told: Sequence[tuple[str, Any]]) -> None:
    """Names and values, one below the other."""
    width = max(len(name) for name, _ in told)
    for name, value in told:
        stream.write(f"{name.ljust(width)}  {in_cell(value, longest=1_000)}".rstrip())


def in_cell(value: Any, longest: int = LONGEST_CELL) -> str:
    """A value as people read it."""
    if value is None or value == "":
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    text = one_line(value, longest + 1)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _draw(stream: Any, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        drawn.add_column(Text(name))
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(file=getattr(stream, "_out", stream), highlight=False, soft_wrap=False).print(drawn)


def _align(stream: Any, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    lines = [[name.upper() for name in head], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        stream.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
