"""Revisions: applies each kind of a reviewer's request to a brief.

Every function takes a brief and the match of a request, and returns an `Outcome`. A request that cannot be
fulfilled leaves the brief unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from . import edits, lengths
from .brief import Brief, Section
from .request_patterns import PATTERNS
from .topics import is_vague, topic_of, value_of
from .words import sentence_case

NEW_SECTION_WORDS = 120
SECTION_LENGTH = re.compile(
    r"\W*\b(?:(?:with|of|in|about|around|max|maximum|at|most|up|to|no|more|than)\W+)*"
    r"(\d{2,5})[\s-]*words?\b.*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The revised brief, whether it has changed, and one sentence about the change or the reason against it."""

    brief: Brief
    acted: bool
    result: str


def apply(brief: Brief, clause: str) -> Outcome:
    """Apply one clause of a reviewer's notes, if it is understood."""
    for name, pattern in PATTERNS:
        match = pattern.search(clause.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
        if match:
            return HANDLERS[name](brief, match)
    return _refused(brief, "this agent does not understand it")


def _set(brief: Brief, match: re.Match[str], field: str, example: str) -> Outcome:
    value = value_of(match)
    if is_vague(value):
        return _refused(brief, f"the new {field} is needed, for example “{field}: {example}”")
    return _done(
        replace(brief, **{field: sentence_case(value)}), f"the {field} is now “{sentence_case(value)}”"
    )


def _set_focus(brief: Brief, match: re.Match[str]) -> Outcome:
    topic = topic_of(match)
    if not topic:
        return _refused(brief, "it does not say what to focus on")
    return _done(replace(brief, angle=f"Focus on {topic}"), f"the angle is now “focus on {topic}”")


def _rename(brief: Brief, match: re.Match[str]) -> Outcome:
    old, new = topic_of(match), topic_of(match, "new")
    index = edits.section_about(brief, old)
    if index is None or not new:
        return _refused(brief, f"no section is called “{old}”")
    section = brief.sections[index]
    changed = edits.with_section(brief, index, replace(section, heading=sentence_case(new)))
    return _done(changed, f"the section “{section.heading}” is now called “{sentence_case(new)}”")


def _add_section(brief: Brief, match: re.Match[str]) -> Outcome:
    wanted = SECTION_LENGTH.search(match["topic"])
    length = int(wanted[1]) if wanted else NEW_SECTION_WORDS
    topic = SECTION_LENGTH.sub("", topic_of(match)).strip()
    if not topic:
        return _refused(brief, "it does not say what the section should be about")
    section = Section(sentence_case(topic), length, keywords=(topic,))
    added = edits.with_new_section(brief, section)
    return _done(added, f"added the section “{section.heading}”")


def _remove(brief: Brief, match: re.Match[str]) -> Outcome:
    topic = topic_of(match)
    smaller = edits.without(brief, topic)
    if smaller == brief:
        return _refused(brief, f"the brief holds nothing about “{topic}” that could be removed")
    left = {section.heading for section in smaller.sections}
    gone = [f"“{section.heading}”" for section in brief.sections if section.heading not in left]
    what = f"removed the section {' and '.join(gone)}" if gone else f"“{topic}” is no longer asked for"
    still = " (the title still names it)" if edits.stems(topic) <= edits.stems(brief.title) else ""
    return _done(smaller, what + still)


def _avoid(brief: Brief, match: re.Match[str]) -> Outcome:
    topic = topic_of(match)
    if not topic:
        return _refused(brief, "it does not say what to avoid")
    smaller = edits.without(brief, topic)
    return _done(replace(smaller, avoid=(*smaller.avoid, topic)), f"the article must not mention “{topic}”")


def _mention(brief: Brief, match: re.Match[str]) -> Outcome:
    topics = [part for part in re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", topic_of(match)) if part.strip()]
    if not topics:
        return _refused(brief, "it does not say what to mention")
    for topic in topics:
        brief = edits.with_mention(brief, topic)
    return _done(brief, f"the article must mention {', '.join(f'“{topic}”' for topic in topics)}")


def _limit(brief: Brief, match: re.Match[str]) -> Outcome:
    limit = _number(match)
    index = edits.section_named_in(brief, match.string)
    if index is not None:
        return _resize(brief, index, min(limit, brief.sections[index].words))
    fitted = lengths.fitted(replace(brief, limit=limit))
    return _done(fitted, f"the word budget is {fitted.words} words and may not exceed {limit}")


def _at_least(brief: Brief, match: re.Match[str]) -> Outcome:
    least = _number(match)
    index = edits.section_named_in(brief, match.string)
    if index is not None:
        return _resize(brief, index, max(least, brief.sections[index].words))
    longer = lengths.scaled(brief, max(least, brief.words))
    return _done(longer, f"the word budget is {longer.words} words")


def _exactly(brief: Brief, match: re.Match[str]) -> Outcome:
    index = edits.section_named_in(brief, match.string)
    if index is not None:
        return _resize(brief, index, _number(match))
    sized = lengths.scaled(brief, _number(match))
    return _done(sized, f"the word budget is {sized.words} words")


def _shorter(brief: Brief, match: re.Match[str]) -> Outcome:
    factor = lengths.shrinking_factor(match.string)
    index = _section_of(brief, match)
    if index is not None:
        return _resize(brief, index, round(brief.sections[index].words * factor))
    shorter = lengths.scaled(brief, round(brief.words * factor))
    return _done(shorter, f"the word budget went from {brief.words} to {shorter.words} words")


def _longer(brief: Brief, match: re.Match[str]) -> Outcome:
    topic = topic_of(match)
    index = _section_of(brief, match)
    if index is not None:
        return _resize(brief, index, round(brief.sections[index].words * lengths.LONGER))
    if topic and re.search(r"\b(?:on|about|into|upon)\b", match[0]):
        return _mention(brief, match)
    longer = lengths.scaled(brief, round(brief.words * lengths.LONGER))
    return _done(longer, f"the word budget went from {brief.words} to {longer.words} words")


def _move(brief: Brief, match: re.Match[str]) -> Outcome:
    topic = topic_of(match)
    index = edits.section_about(brief, topic)
    if index is None:
        return _refused(brief, f"no section is about “{topic}”")
    section = brief.sections[index]
    others = [other for other in brief.sections if other is not section]
    to_end = (match.groupdict().get("where") or "").lower() in {"last", "end", "bottom"}
    order = (*others, section) if to_end else (section, *others)
    return _done(
        replace(brief, sections=order), f"“{section.heading}” is now {'last' if to_end else 'first'}"
    )


def _section_of(brief: Brief, match: re.Match[str]) -> int | None:
    """Return the index of the section that a request about length names, or None for the whole brief."""
    named = edits.section_about(brief, topic_of(match))
    return edits.section_named_in(brief, match.string) if named is None else named


def _resize(brief: Brief, index: int, length: int) -> Outcome:
    section = brief.sections[index]
    resized = edits.with_section(brief, index, replace(section, words=max(1, length)))
    return _done(
        resized, f"the section “{section.heading}” has {max(1, length)} words now, it had {section.words}"
    )


def _number(match: re.Match[str]) -> int:
    return max(1, int(re.sub(r"\D", "", match["number"])))


def _done(brief: Brief, result: str) -> Outcome:
    return Outcome(brief, acted=True, result=result)


def _refused(brief: Brief, reason: str) -> Outcome:
    return Outcome(brief, acted=False, result=reason)


HANDLERS: Mapping[str, Callable[[Brief, re.Match[str]], Outcome]] = {
    "title": partial(_set, field="title", example="Bees on the roof"),
    "audience": partial(_set, field="audience", example="school teachers"),
    "angle": partial(_set, field="angle", example="what it costs"),
    "focus": _set_focus,
    "rename": _rename,
    "add_section": _add_section,
    "remove": _remove,
    "avoid": _avoid,
    "mention": _mention,
    "at_most": _limit,
    "at_least": _at_least,
    "exactly": _exactly,
    "shorter": _shorter,
    "longer": _longer,
    "move": _move,
}
