"""Tables of commands: drawn with lines on a terminal, else plain aligned text, so that other programs can read them.

The values come from agents and clients: control characters are escaped, and nothing is interpreted as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenants.audit import one_line

LONGEST_CELL = 120
EMPTY = "-"

Row = Sequence[Any]


def write_table(stream: Any, head: Sequence[str], rows: Sequence[Row]) -> None:
    cells = [[format_cell(value) for value in row] for row in rows]
    if getattr(stream, "isatty", lambda: False)():
        _draw(stream, head, cells)
    else:
        _align(stream, head, cells)
    if not rows:
        stream.write("(none)")


def write_facts(stream: Any, rows: Sequence[tuple[str, Any]]) -> None:
    """Write names and values, one pair per line."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        stream.write(f"{name.ljust(width)}  {format_cell(value, longest=1_000)}".rstrip())


def format_cell(value: Any, longest: int = LONGEST_CELL) -> str:
    """Format a value for people, shortened to `longest` characters."""
    if value is None or value == "":
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    text = one_line(value, longest + 1)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _draw(stream: Any, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(Text(name))
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=getattr(stream, "_out", stream), highlight=False, soft_wrap=False).print(table)


def _align(stream: Any, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    lines = [[name.upper() for name in head], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        stream.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
