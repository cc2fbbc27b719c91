"""Tables as CSV: a header with the names of the fields, then a row per line; UTF-8, with or without a byte order mark."""

from __future__ import annotations

import csv
import io
from collections.abc import Generator
from typing import BinaryIO

LONGEST_VALUE = 100_000  # characters


class BadTable(Exception):
    """The text is no table. Says the line."""


def lines_of(file: BinaryIO) -> Generator[tuple[int, dict[str, str]]]:
    """The rows as text with the number of the line that each begins on; the header is line 1. Empty lines count for nothing.

    Reads as it goes. Raises `BadTable` for what is not UTF-8, has an open quote or another number of values than the header.
    """
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    reader = csv.reader(text, strict=True)
    last = 0
    try:
        header = _header(next(reader, []))
        last = reader.line_num
        for values in reader:
            line, last = last + 1, reader.line_num
            if values:
                yield line, _row(line, values, header)
    except UnicodeDecodeError as error:
        raise BadTable(f"it is not UTF-8 text, somewhere after line {last}") from error
    except csv.Error as error:
        raise BadTable(f"line {last + 1} is not CSV: {error}") from error
    finally:
        text.detach()  # the file is closed by who opened it


def _row(line: int, values: list[str], header: list[str]) -> dict[str, str]:
    if len(values) != len(header):
        raise BadTable(f"line {line} has {_values(len(values))}, and the header {_values(len(header))}")
    if any(len(value) > LONGEST_VALUE for value in values):
        raise BadTable(f"line {line} has a value of more than {LONGEST_VALUE:,} characters")
    return dict(zip(header, values, strict=True))


def _header(names: list[str]) -> list[str]:
    found = [name.strip() for name in names]
    if not any(found):
        raise BadTable("line 1 must name the fields")
    if twice := next((name for name in found if found.count(name) > 1), None):
        raise BadTable(f"line 1 names the field {twice!r} twice")
    return found


def _values(number: int) -> str:
    return "1 value" if number == 1 else f"{number} values"
