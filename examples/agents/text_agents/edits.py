"""Edits: finds and changes parts of a brief. Briefs are immutable, so every function returns a new one."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .brief import Brief, Section
from .stop_words import LANGUAGES
from .words import folded, stem, words

CLOSING_HEADINGS = frozenset({"conclusion", "summary", "outlook"})


@lru_cache(maxsize=2000)  # the same few phrases are compared with every sentence
def stems(text: str) -> frozenset[str]:
    """Return the stems of the content words of a phrase."""
    stops = LANGUAGES["English"]
    return frozenset(stem(word.text) for word in words(text) if folded(word.text) not in stops)


def section_about(brief: Brief, topic: str) -> int | None:
    """Return the index of the section whose heading, or else whose subheadings or keywords, contain the topic."""
    wanted = stems(topic)
    if not wanted:
        return None
    for parts in (_heading, _subheadings, _keywords):
        for index, section in enumerate(brief.sections):
            if any(wanted <= stems(part) for part in parts(section)):
                return index
    return None


def section_named_in(brief: Brief, sentence: str) -> int | None:
    """Return the index of the section whose complete heading is in the sentence; of several, the longest heading."""
    mentioned = stems(sentence)
    headings = [stems(section.heading) for section in brief.sections]
    named = [index for index, heading in enumerate(headings) if heading and heading <= mentioned]
    return max(named, key=lambda index: len(headings[index]), default=None)


def with_section(brief: Brief, index: int, section: Section) -> Brief:
    """Return the brief with one section replaced."""
    return replace(brief, sections=(*brief.sections[:index], section, *brief.sections[index + 1 :]))


def with_new_section(brief: Brief, section: Section) -> Brief:
    """Return the brief with one more section, before its conclusion."""
    last = brief.sections[-1]
    end = len(brief.sections) - (folded(last.heading) in CLOSING_HEADINGS)
    return replace(brief, sections=(*brief.sections[:end], section, *brief.sections[end:]))


def with_mention(brief: Brief, topic: str) -> Brief:
    """Return the brief with a topic that the article must mention, in the section that fits best."""
    index = section_about(brief, topic) or _closest_section(brief, topic)
    section = brief.sections[index]
    if topic not in section.keywords:
        brief = with_section(brief, index, replace(section, keywords=(*section.keywords, topic)))
    return brief if topic in brief.mentions else replace(brief, mentions=(*brief.mentions, topic))


def without(brief: Brief, topic: str) -> Brief:
    """Return the brief without the sections, keywords and mentions of the topic. At least one section remains."""
    wanted = stems(topic)
    if not wanted:
        return brief
    kept = tuple(section for section in brief.sections if not wanted <= stems(section.heading))
    return replace(
        brief,
        sections=tuple(
            replace(
                section,
                keywords=_lacking(section.keywords, wanted),
                subheadings=_lacking(section.subheadings, wanted),
            )
            for section in kept or brief.sections[:1]
        ),
        mentions=_lacking(brief.mentions, wanted),
    )


def _closest_section(brief: Brief, topic: str) -> int:
    """Return the index of the section that shares most words with the topic, else the first after the introduction."""
    wanted = stems(topic)
    shared = [len(wanted & stems(" ".join(_everything(section)))) for section in brief.sections]
    best = max(range(len(shared)), key=lambda index: shared[index])
    return best if shared[best] else min(1, len(shared) - 1)


def _lacking(phrases: tuple[str, ...], wanted: frozenset[str]) -> tuple[str, ...]:
    return tuple(phrase for phrase in phrases if not wanted <= stems(phrase))


def _heading(section: Section) -> tuple[str, ...]:
    return (section.heading,)


def _subheadings(section: Section) -> tuple[str, ...]:
    return section.subheadings


def _keywords(section: Section) -> tuple[str, ...]:
    return section.keywords


def _everything(section: Section) -> tuple[str, ...]:
    return (section.heading, *section.subheadings, *section.keywords)
