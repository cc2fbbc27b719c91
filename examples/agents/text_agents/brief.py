"""The brief: the plan of an article, as Markdown for people and as data for the next agent.

It can be parsed from either form, so a rejected brief can be revised wherever it comes from: the prompt, the
stored output, or a person's edit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from .words import one_line

TITLE = "# Content brief: "
FIELDS = {
    "audience": "Audience",
    "angle": "Angle",
    "length": "Length",
    "mentions": "Must mention",
    "avoid": "Must not mention",
}
SECTION = re.compile(r"- \*\*H2: (?P<heading>.+?)\*\* \((?P<words>\d{1,6}) words\)")
KEYWORDS = "- Keywords: "
SUBHEADING = "- H3: "
LIMIT = re.compile(r"at most (\d+)")
QUOTED = re.compile(r"^[ \t]*(?:>[ \t]?)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the article."""

    heading: str
    words: int
    keywords: tuple[str, ...] = ()
    subheadings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Brief:
    """A plan for one article. `limit`: the number of words that a reviewer allows, if any."""

    title: str
    audience: str
    angle: str
    sections: tuple[Section, ...] = field(default=())
    mentions: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def words(self) -> int:
        """The word budget: the sum of its sections."""
        return sum(section.words for section in self.sections)

    def as_data(self) -> dict[str, Any]:
        """Return the brief as the data of an output."""
        return {
            "title": self.title,
            "audience": self.audience,
            "angle": self.angle,
            "words": self.words,
            "limit": self.limit,
            "mentions": list(self.mentions),
            "avoid": list(self.avoid),
            "outline": [_section_data(section) for section in self.sections],
        }

    def as_markdown(self) -> str:
        """Return the brief as Markdown."""
        length = f"{self.words} words" + (f" (at most {self.limit})" if self.limit else "")
        values = {"audience": self.audience, "angle": self.angle, "length": length}
        values |= {"mentions": "; ".join(self.mentions), "avoid": "; ".join(self.avoid)}
        head = [f"- **{FIELDS[name]}:** {value}" for name, value in values.items() if value]
        outline = [line for section in self.sections for line in _section_lines(section)]
        return "\n".join([f"{TITLE}{self.title}", "", *head, "", "## Outline", "", *outline, ""])


def from_data(data: Any) -> Brief | None:
    """Return the brief in the data of an output, or None."""
    if not isinstance(data, Mapping) or not isinstance(data.get("outline"), list):
        return None
    sections = tuple(_section_of(item) for item in data["outline"] if isinstance(item, Mapping))
    if not sections:
        return None
    limit = data.get("limit")
    return Brief(
        title=_line(data.get("title")) or "Untitled",
        audience=_line(data.get("audience")),
        angle=_line(data.get("angle")),
        sections=sections,
        mentions=_lines(data.get("mentions")),
        avoid=_lines(data.get("avoid")),
        limit=limit if isinstance(limit, int) else None,
    )


def from_markdown(text: str) -> Brief | None:
    """Return the last brief in a text, or None. It may be quoted or indented, and surrounded by other text."""
    start = text.rfind(TITLE)
    if start < 0:
        return None
    lines = [line.strip() for line in QUOTED.sub("", text[start:]).splitlines()]
    values = {name: _value(lines, label) for name, label in FIELDS.items()}
    sections = tuple(_parsed_sections(lines))
    if not sections:
        return None
    limit = LIMIT.search(values["length"])
    return Brief(
        title=lines[0].removeprefix(TITLE).strip() or "Untitled",
        audience=values["audience"],
        angle=values["angle"],
        sections=sections,
        mentions=_listed(values["mentions"]),
        avoid=_listed(values["avoid"]),
        limit=int(limit[1]) if limit else None,
    )


def _section_data(section: Section) -> dict[str, Any]:
    return {
        "level": 2,
        "heading": section.heading,
        "words": section.words,
        "keywords": list(section.keywords),
        "subheadings": [{"level": 3, "heading": heading} for heading in section.subheadings],
    }


def _section_lines(section: Section) -> Iterator[str]:
    yield f"- **H2: {section.heading}** ({section.words} words)"
    if section.keywords:
        yield f"  {KEYWORDS}{', '.join(section.keywords)}"
    for heading in section.subheadings:
        yield f"  {SUBHEADING}{heading}"


def _section_of(item: Mapping[str, Any]) -> Section:
    words = item.get("words")
    subheadings = item.get("subheadings")
    headings = subheadings if isinstance(subheadings, list) else []
    return Section(
        heading=_line(item.get("heading")) or "Untitled section",
        words=words if isinstance(words, int) and 0 < words < 100_000 else 100,
        keywords=_lines(item.get("keywords")),
        subheadings=_lines([part.get("heading") if isinstance(part, Mapping) else part for part in headings]),
    )


def _parsed_sections(lines: list[str]) -> Iterator[Section]:
    for index, line in enumerate(lines):
        match = SECTION.match(line)
        if match is None:
            continue
        # The section ends where other text begins, for example the reviewer's notes.
        details = list(
            takewhile(lambda detail: detail.startswith((KEYWORDS, SUBHEADING)), lines[index + 1 :])
        )
        keywords = [word.strip() for detail in details for word in _after(KEYWORDS, detail).split(",")]
        headings = [_after(SUBHEADING, detail) for detail in details]
        yield Section(
            heading=match["heading"],
            words=int(match["words"]),
            keywords=tuple(filter(None, keywords)),
            subheadings=tuple(filter(None, headings)),
        )


def _after(marker: str, line: str) -> str:
    return line.removeprefix(marker) if line.startswith(marker) else ""


def _value(lines: list[str], label: str) -> str:
    marker = f"- **{label}:** "
    return next((line.removeprefix(marker) for line in lines if line.startswith(marker)), "")


def _listed(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(";") if part.strip())


def _line(value: Any) -> str:
    return one_line(value) if isinstance(value, str) else ""


def _lines(value: Any) -> tuple[str, ...]:
    return tuple(filter(None, map(_line, value))) if isinstance(value, list) else ()
