"""What has changed between two versions of a text: lines that went and came, and the words in them.

Comparing takes time that grows with the square of the length: within these limits a second at worst. Longer texts are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MOST_LINES = 800  # of each version
MOST_CHARACTERS = 200_000
MOST_WORDS = 2_000  # compared word by word, over all lines; the rest shows as whole lines
CONTEXT = 2  # unchanged lines around a change
ALIKE = 0.5  # from here on a line counts as changed, not as replaced by another

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")

Parts = tuple[tuple[str, bool], ...]  # pieces of a line, and whether each is what changed


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `same`, `added`, `removed`, or `gap` for unchanged lines that are left out."""

    kind: str
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """`too_long` when nobody has compared; no lines and not too long when nothing has changed."""

    lines: tuple[Line, ...] = ()
    too_long: bool = False

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for line in self.lines)


def difference(before: str, after: str) -> Difference:
    """From one version to the other."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MOST_LINES or max(len(before), len(after)) > MOST_CHARACTERS:
        return Difference(too_long=True)
    return Difference(tuple(_lines(old, new)))


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    words = _Words(MOST_WORDS)
    end = 0
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        if group[0][1] > end:
            yield Line("gap")
        for tag, start, stop, new_start, new_stop in group:
            if tag == "equal":
                yield from (Line("same", ((text, False),)) for text in old[start:stop])
            else:
                yield from _changed(old[start:stop], new[new_start:new_stop], words)
        end = group[-1][2]
    if 0 < end < len(old):
        yield Line("gap")


def _changed(old: Sequence[str], new: Sequence[str], words: _Words) -> Iterator[Line]:
    pairs = [words.compared(*pair) for pair in zip(old, new, strict=False)]
    yield from (Line("removed", removed) for removed, _ in pairs)
    yield from (Line("removed", ((text, False),)) for text in old[len(pairs) :])
    yield from (Line("added", added) for _, added in pairs)
    yield from (Line("added", ((text, False),)) for text in new[len(pairs) :])


class _Words:
    """Compares lines word by word while its allowance lasts."""

    def __init__(self, allowance: int) -> None:
        self.left = allowance

    def compared(self, old: str, new: str) -> tuple[Parts, Parts]:
        """The parts of both lines; whole lines when they have little in common."""
        before, after = _WORDS.findall(old), _WORDS.findall(new)
        self.left -= max(len(before), len(after))
        if self.left < 0:
            return ((old, False),), ((new, False),)
        matcher = SequenceMatcher(None, before, after)
        if matcher.ratio() < ALIKE:
            return ((old, False),), ((new, False),)
        steps = matcher.get_opcodes()
        return (
            tuple(("".join(before[i:j]), tag != "equal") for tag, i, j, _, _ in steps if j > i),
            tuple(("".join(after[i:j]), tag != "equal") for tag, _, _, i, j in steps if j > i),
        )
