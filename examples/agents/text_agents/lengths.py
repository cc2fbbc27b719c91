"""Lengths: distributes a number of words over the sections of a brief, in their present proportions."""

from __future__ import annotations

import re
from dataclasses import replace

from .brief import Brief

SHORTER = 0.7  # "shorter" without a figure
LONGER = 1.3
PERCENT = re.compile(r"\bby (?:about )?(\d{1,2}) ?(?:%|percent)", re.IGNORECASE)
HALF = re.compile(r"\b(?:half|halve)\b", re.IGNORECASE)


def scaled(brief: Brief, words: int) -> Brief:
    """Return the brief with exactly this number of words, at least one per section. Removes a limit that is now too low."""
    words = max(words, len(brief.sections))
    before = max(1, brief.words)
    sizes = [max(1, section.words * words // before) for section in brief.sections]
    largest = max(range(len(sizes)), key=lambda index: sizes[index])
    sizes[largest] += words - sum(sizes)  # what rounding left over
    sections = zip(brief.sections, sizes, strict=True)
    return replace(
        brief,
        sections=tuple(replace(section, words=max(1, size)) for section, size in sections),
        limit=brief.limit if brief.limit and words <= brief.limit else None,
    )


def fitted(brief: Brief) -> Brief:
    """Return the brief, shortened to its limit if it is longer."""
    return scaled(brief, brief.limit) if brief.limit and brief.words > brief.limit else brief


def shrinking_factor(wish: str) -> float:
    """Return the factor that a request means: "half as long", "cut by 20 %", or simply "shorter"."""
    percent = PERCENT.search(wish)
    if percent:
        return 1 - int(percent[1]) / 100
    return 0.5 if HALF.search(wish) else SHORTER
