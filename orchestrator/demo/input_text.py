"""The text that a demonstration works on. Checked without Django, because reading its settings starts the servers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from orchestrator.example_files import EXAMPLES

DEFAULT_INPUT = EXAMPLES / "input" / "urban-beekeeping.md"
LONGEST_INPUT = 150_000  # Bytes; larger texts do not fit into one request.


class InputRefused(ValueError):
    """The input text cannot be used; the message says why."""


def check_argument(arguments: Sequence[str]) -> None:
    """Raise `InputRefused` if the arguments of a demonstration name a text that cannot be used."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--input", type=Path, default=DEFAULT_INPUT)
    try:
        known, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        return  # The command itself reports how it is used.
    read_input(known.input)


def read_input(path: Path) -> str:
    """Read the input text. Raises `InputRefused` if it cannot be used."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputRefused(
            f"{path} cannot be read: {error.strerror}. Name a text file with `--input PATH`, or `make demo INPUT=PATH`."
        ) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputRefused(f"{path} is not UTF-8 text (byte {error.start}).") from error
    if not text.strip():
        raise InputRefused(f"{path} is empty; there is nothing to write a brief about.")
    if len(raw) > LONGEST_INPUT:
        raise InputRefused(f"{path} has {len(raw)} bytes; the demonstration takes at most {LONGEST_INPUT}.")
    return text.replace("\x00", "")
