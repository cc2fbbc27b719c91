"""The first draft of a brief, made from keywords and their text.

The strongest keywords that have no word in common get a section each. Every other keyword joins the section
with which it shares most sentences. Parameters of the step (`title`, `audience`, `angle`, `words`) take
precedence over derived values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import keywords as researcher
from . import source
from .brief import Brief, Section
from .edits import stems
from .job import Job
from .keywords import Keyword
from .words import Sentence, sentence_case, stem, words

MIDDLE_SECTIONS = 4
KEYWORDS_USED = 16
MARGIN_SHARE = 0.12  # of the word budget, for the introduction and again for the conclusion
ENGLISH_HEADINGS = (
    "Understanding {}",
    "{}: what it takes",
    "{}: what to know",
    "{}: limits and open questions",
)
PLAIN_HEADINGS = ("{}",) * MIDDLE_SECTIONS


def draft(job: Job) -> Brief:
    """Return a new brief for the job. Raises a 422 `Problem` if the job has no text."""
    text = source.of_job(job)
    document = text.document()
    found = [keyword for keyword in researcher.of_job(job, document)[:KEYWORDS_USED] if keyword.key]
    budget = job.number("words", 900, least=100, most=20_000)
    groups = _group(found, document.sentences())
    leads = [group[0].phrase for group in groups]
    subject = _subject(text.title, found)
    is_english = researcher.language_in(document) == "English"
    return Brief(
        title=_line(job, "title") or _title(text.title, leads),
        audience=_line(job, "audience")
        or (f"Readers who are new to {subject}" if subject else "General readers"),
        angle=_line(job, "angle") or _angle(subject, leads),
        sections=_sections(groups, budget, ENGLISH_HEADINGS if is_english else PLAIN_HEADINGS),
    )


def _line(job: Job, name: str) -> str:
    return " ".join(job.word(name).split())


def _title(source_title: str, leads: Sequence[str]) -> str:
    if not leads:
        return source_title
    others = [lead for lead in leads if lead.casefold() not in source_title.casefold()]
    return f"{source_title}: {', '.join(others[:2])}" if others and len(source_title) < 40 else source_title


def _subject(title: str, found: Sequence[Keyword]) -> str:
    """Return the subject of the text: the longest keyword in its title, else its best keyword."""
    titled = [keyword for keyword in found if keyword.key <= stems(title)]
    best = max(titled, key=lambda keyword: len(keyword.key)) if titled else next(iter(found), None)
    return best.phrase if best else ""


def _angle(subject: str, leads: Sequence[str]) -> str:
    means = [lead for lead in leads if lead != subject]
    if not means:
        return "Explain the subject with facts from the source"
    return f"Explain {subject} by way of {_listed(means)}, with facts from the source"


def _group(found: Sequence[Keyword], sentences: Sequence[Sentence]) -> list[list[Keyword]]:
    groups: list[list[Keyword]] = []
    rest: list[Keyword] = []
    for keyword in found:
        is_new = all(keyword.key.isdisjoint(group[0].key) for group in groups)
        (groups.append([keyword]) if is_new and len(groups) < MIDDLE_SECTIONS else rest.append(keyword))
    known = [frozenset(stem(word.text) for word in words(sentence.text)) for sentence in sentences]
    for keyword in rest:
        _closest(groups, keyword, known).append(keyword)
    return groups


def _closest(groups: list[list[Keyword]], keyword: Keyword, sentences: list[frozenset[str]]) -> list[Keyword]:
    """Return the group whose first keyword shares most sentences with this one; among equals, the smallest."""
    around = [known for known in sentences if keyword.key <= known]

    def closeness(group: list[Keyword]) -> tuple[int, int]:
        return sum(group[0].key <= known for known in around), -len(group)

    return max(groups, key=closeness)


def _sections(groups: list[list[Keyword]], budget: int, headings: Sequence[str]) -> tuple[Section, ...]:
    margin = round(budget * MARGIN_SHARE)
    total = sum(_weight(group) for group in groups)
    middle = [
        Section(
            heading=sentence_case(headings[index].format(group[0].phrase)),
            words=round((budget - 2 * margin) * _weight(group) / total),
            keywords=tuple(keyword.phrase for keyword in group),
            subheadings=tuple(sentence_case(keyword.phrase) for keyword in group[1:3]),
        )
        for index, group in enumerate(groups)
    ]
    rest = budget - margin - sum(section.words for section in middle)  # rounding must not lose a word
    leads = tuple(group[0].phrase for group in groups)
    return (Section("Introduction", rest, leads[:2]), *middle, Section("Conclusion", margin, leads[:1]))


def _weight(group: list[Keyword]) -> float:
    return math.sqrt(
        sum(keyword.score for keyword in group)
    )  # without the root, the first section would get most words


def _listed(phrases: Sequence[str]) -> str:
    if len(phrases) < 2:
        return "".join(phrases)
    return f"{', '.join(phrases[:-1])} and {phrases[-1]}"
