"""Topics: the subject of a reviewer's request, without the words around it."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"""\s*["'“„«‘]([^"'“”„«»‘]{2,120})["'”“»](?!\w)""")  # noqa: RUF001
_EDGES = " \n.,:;!?()-\"'“”‘„«»"  # noqa: RUF001
_PART = r"(?:section|chapter|part|paragraph|heading)s?"
_LEADING = re.compile(
    r"^(?:that|also|again|the|a|an|any|some|all|more|about|on|into|upon|in|something|anything|everything"
    rf"|every|short|whole|entire|a few words|{_PART}|references? to|mentions? of|information|details)\s+",
    re.IGNORECASE,
)
_TRAILING = re.compile(
    rf"\s+(?:please|too|as well|again|somewhere|if possible|instead|{_PART}|completely|entirely"
    r"|(?:in|to|from|of|into) (?:the|this|your) (?:article|brief|text|outline|draft))$",
    re.IGNORECASE,
)
_VAGUE = re.compile(
    r"(?:too|not|very|so|rather|more|less|much|a (?:bit|little)|wrong|unclear|vague|boring|bad|weak|missing"
    r"|off|good|fine|great|better|different|improved?|changed?|shorter|longer|clearer|catchier|simpler"
    r"|stronger|broader|narrower|sharper|friendlier)\b",
    re.IGNORECASE,
)
LONGEST = 120


def topic_of(match: re.Match[str], group: str = "topic") -> str:
    """Return the topic of a request: the quoted part if it starts with one, else all of it. May be empty."""
    topic = match.groupdict().get(group) or ""
    quoted = _QUOTED.match(topic)
    return quoted[1].strip(" .,:;") if quoted else _trimmed(topic)


def value_of(match: re.Match[str]) -> str:
    """Return a literal value such as a title, without its quotation marks."""
    quoted = _QUOTED.match(match["topic"])
    return quoted[1].strip() if quoted else match["topic"].strip(_EDGES)[:LONGEST]


def is_vague(value: str) -> bool:
    """Whether the text after "title:" is a complaint ("too long") and not a value."""
    return not value or _VAGUE.match(value) is not None


def _trimmed(topic: str) -> str:
    before = None
    while topic != before:
        before = topic
        topic = _TRAILING.sub("", _LEADING.sub("", topic.strip(_EDGES)))
    return topic[:LONGEST]
