"""Markdown: finds title, headings and paragraphs, and replaces markup by spaces.

Markup is never removed, so every offset is an offset in the text that the user sent. Plain text is treated as
Markdown without markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from .words import Sentence, Word, one_line, sentences, words

# Each pattern excludes its own opening sign, so it never scans far and then fails. Even a megabyte of brackets
# is read in linear time.
_LINK_TARGET = r"(?<=\])(?:\([^()\n]{0,2000}\)|\[[^\[\]\n]{0,200}\])"
_TAG = r"</?[A-Za-z][^<>]{0,500}>|<!--[^<>]{0,5000}-->"
_ADDRESS = r"https?://[^\s<>()\[\]]{1,2000}"
_EMPHASIS = r"(?<![^\W_])[*_~]{1,3}|[*_~]{1,3}(?![^\W_])"
MARKUP = re.compile(f"{_LINK_TARGET}|{_TAG}|{_ADDRESS}|{_EMPHASIS}|[`\\[\\]]|!(?=\\[)")
HEADING = re.compile(r" {0,3}#{1,6}(?:\s+|$)")
UNDERLINE = re.compile(r" {0,3}(?:=+|-+)\s*$")
ITEM = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+")
QUOTE = re.compile(r"^(?:[ \t]{0,3}>)+", re.MULTILINE)
FENCE = re.compile(r"\s*(?:```|~~~)")
RULE = re.compile(r"[\s|:=*_-]*$")


class Kind(Enum):
    """The kind of a block."""

    HEADING = "heading"
    PROSE = "prose"


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, paragraph or list item: its text without markup, and its offset."""

    kind: Kind
    text: str
    start: int

    def words(self) -> Iterator[Word]:
        """The words, with their offsets in the whole text."""
        return words(self.text, self.start)

    def sentences(self) -> Iterator[Sentence]:
        """The sentences, with their offsets in the whole text."""
        return sentences(self.text, self.start)


@dataclass(frozen=True, slots=True)
class Document:
    """A text in blocks."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def prose(self) -> list[Block]:
        """All blocks but the headings. A text of headings only counts as prose."""
        return [block for block in self.blocks if block.kind is Kind.PROSE] or list(self.blocks)

    def sentences(self) -> list[Sentence]:
        """All sentences of the prose."""
        return [sentence for block in self.prose for sentence in block.sentences()]


def read(text: str) -> Document:
    """Return the blocks of a text that contain at least one word."""
    unquoted = QUOTE.sub(_blank, text)
    plain = MARKUP.sub(_blank, unquoted)
    blocks = tuple(block for block in _blocks(unquoted, plain) if next(block.words(), None))
    return Document(title=_title(blocks), blocks=blocks)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _title(blocks: tuple[Block, ...]) -> str:
    headings = [block.text for block in blocks[:50] if block.kind is Kind.HEADING]
    if headings:
        return one_line(headings[0], 120)
    first = next(blocks[0].sentences()).text if blocks else ""
    return one_line(first, 80).rstrip(".")


def _blocks(text: str, plain: str) -> Iterator[Block]:
    start: int | None = None  # of the paragraph that is being collected
    end = 0
    for line, offset in _lines_outside_code(text):
        marker = _marker(line)
        is_heading = bool(HEADING.match(line))
        is_underline = start is not None and UNDERLINE.match(line) is not None
        if start is not None and (not line.strip() or is_heading or is_underline or marker):
            yield Block(Kind.HEADING if is_underline else Kind.PROSE, plain[start:end], start)
            start = None
        if is_heading:
            yield Block(
                Kind.HEADING, plain[offset + marker : offset + len(line)].rstrip(" #"), offset + marker
            )
        elif not RULE.match(line):
            start = offset + marker if start is None else start
            end = offset + len(line)
    if start is not None:
        yield Block(Kind.PROSE, plain[start:end], start)


def _marker(line: str) -> int:
    """Return the length of the heading or list mark at the start of a line."""
    match = HEADING.match(line) or ITEM.match(line)
    return match.end() if match else 0


def _lines_outside_code(text: str) -> Iterator[tuple[str, int]]:
    """Return lines with their offsets. Fenced code and the front matter of a file become empty lines."""
    offset = 0
    closing: str | None = None
    for number, line in enumerate(text.splitlines(keepends=True)):
        bare = line.strip()
        fence = FENCE.match(line)
        if closing is not None:
            closing = None if bare.startswith(closing) else closing
            yield "", offset
        elif fence:
            closing = fence[0].strip()
            yield "", offset
        elif number == 0 and bare == "---" and "\n---" in text[4:4000]:
            closing = "---"
            yield "", offset
        else:
            yield line.rstrip("\r\n"), offset
        offset += len(line)
