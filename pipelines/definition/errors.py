"""Errors of a definition: collected while it is read, reported together.

A path leads from the top of the definition to the error, as in `steps[2].depends_on[0]`. A missing member is
reported at its own path, in an object that exists. The empty path is the definition itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from json import dumps
from typing import ClassVar

PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
MOST_IN_TEXT = 10  # errors in the exception's text; `errors` holds all of them
KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
LONGEST_GUESS = 63  # characters; longer words are not compared, because that is slow


@dataclass(frozen=True, slots=True)
class InputError:
    """One error and its path."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


MOST_COMPARED = 1_000  # words that are compared in all guesses about one definition


class DefinitionError(Exception):
    """The pipeline's definition is invalid. `errors` lists everything that is wrong with it."""

    code: ClassVar[str] = "invalid_definition"
    status: ClassVar[int] = 400  # of the HTTP response

    def __init__(self, errors: Iterable[InputError]) -> None:
        self.errors = list(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        text = "; ".join(map(str, self.errors[:MOST_IN_TEXT]))
        more = len(self.errors) - MOST_IN_TEXT
        return f"{text}; and {more} more" if more > 0 else text


class Errors:
    """Collects errors, with a suggestion for the first few unknown words, because guessing is slow."""

    def __init__(self) -> None:
        self.found: list[InputError] = []
        self._comparisons_left = MOST_COMPARED

    def add(self, path: str, message: str) -> None:
        self.found.append(InputError(path, message))

    def add_unknown(self, path: str, what: str, word: str, known: Collection[str]) -> None:
        """Add "unknown <what>", with the nearest known word if there is one."""
        guess: list[str] = []
        if len(word) <= LONGEST_GUESS and len(known) <= self._comparisons_left:
            self._comparisons_left -= len(known)
            guess = get_close_matches(word, known, n=1, cutoff=0.7)
        hint = f", did you mean {guess[0]}?" if guess else ""
        self.add(path, f"unknown {what} {quote_value(word)}{hint}")

    def raise_if_any(self) -> None:
        if self.found:
            raise DefinitionError(self.found)


def explain_unknown(what: str, word: str, known: Collection[str]) -> str:
    """Return the message of `Errors.add_unknown` for a single word."""
    errors = Errors()
    errors.add_unknown("", what, word, known)
    return errors.found[0].message


def at(path: str, part: str | int) -> str:
    """Return the path one level down: an index in brackets, a plain key after a dot, any other key quoted."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    if PLAIN_KEY.fullmatch(part):
        return f"{path}.{part}" if path else part
    return f"{path}[{dumps(part)}]"


def path_of(parts: Iterable[str | int], base: str = "") -> str:
    """Return the path with these parts below `base`."""
    for part in parts:
        base = at(base, part)
    return base


def quote_value(value: object) -> str:
    """Return a value as a message may quote it: text is quoted, shortened and printable; other values become their kind."""
    if isinstance(value, str):
        return dumps(value if len(value) <= LONGEST_GUESS else f"{value[:LONGEST_GUESS]}...")
    return KINDS.get(type(value), f"a value of type {type(value).__name__}")
