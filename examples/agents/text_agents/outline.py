"""The blog writer: fills the outline of an approved brief with sentences of the source.

Extractive: every sentence is quoted from the source, is used once, goes to the section whose keywords it
matches best, and keeps its order. What the source does not cover is listed, not invented.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import brief as briefs
from . import source
from .brief import Brief, Section
from .draft import draft
from .edits import CLOSING_HEADINGS, stems
from .job import Answer, Job
from .words import Sentence, folded, one_line, words

PARAGRAPH_SENTENCES = 4
LONGEST_SENTENCE = 1000  # characters; longer ones are no sentences
MENTION_WEIGHT = 5  # requests of reviewers come first
EDGE = 3  # sentences at the start and the end of the source
EDGE_WEIGHT = 3
GAP = "*The source says nothing about this; the writer has to find out.*"


@dataclass(slots=True)
class Part:
    """A section of the article while it is being filled."""

    section: Section
    sentences: list[Sentence] = field(default_factory=list)
    words: int = 0

    def affinity(self, known: frozenset[str], mentions: Sequence[str]) -> float:
        """Return how well a sentence fits. Keywords count by their length, headings half, requested mentions most."""
        matched = [phrase for phrase in self.section.keywords if stems(phrase) and stems(phrase) <= known]
        keywords = sum(MENTION_WEIGHT if phrase in mentions else len(stems(phrase)) for phrase in matched)
        named = stems(" ".join((self.section.heading, *self.section.subheadings)))
        return keywords + len(named & known) / 2

    def has_room(self, length: int) -> bool:
        """Whether the word budget allows for one more sentence; the first always fits."""
        return not self.sentences or self.words + length <= self.section.words

    def add(self, sentence: Sentence, length: int) -> None:
        """Add a sentence."""
        self.sentences.append(sentence)
        self.words += length

    def paragraphs(self) -> list[str]:
        """Return the sentences in the order of the source, as paragraphs."""
        ordered = sorted(self.sentences, key=lambda sentence: sentence.start)
        texts = [" ".join(sentence.text.split()) for sentence in ordered]
        starts = range(0, len(texts), PARAGRAPH_SENTENCES)
        return [" ".join(texts[start : start + PARAGRAPH_SENTENCES]) for start in starts]


def write(job: Job) -> Answer:
    """The skill: returns the article in sections, and what it still lacks."""
    brief = brief_of(job)
    text = source.of_job(job)
    parts = [Part(section) for section in brief.sections]
    _fill(parts, _allowed(text.document().sentences(), brief.avoid), brief.mentions)
    mentions = [{"phrase": phrase, "covered": _covers(parts, phrase)} for phrase in brief.mentions]
    data = {
        "title": brief.title,
        "audience": brief.audience,
        "words": sum(part.words for part in parts),
        "budget": brief.words,
        "sections": [_part_data(part) for part in parts],
        "mentions": mentions,
        "source_truncated": text.truncated,
    }
    return Answer(_article(brief, parts, mentions), data)


def brief_of(job: Job) -> Brief:
    """Return the brief in the input's data or content, else a new one from the text."""
    outline_data = job.data if source.find(job.data, "outline") is None else _holder_of_outline(job.data)
    return briefs.from_data(outline_data) or briefs.from_markdown(job.content) or draft(job)


def _holder_of_outline(data: Any) -> Any:
    return data if "outline" in data else next(part for part in data.values() if source.find(part, "outline"))


def _allowed(sentences: Sequence[Sentence], avoid: Sequence[str]) -> list[Sentence]:
    """Return the sentences that are not too long and do not name what the brief avoids."""
    forbidden = [stems(phrase) for phrase in avoid if stems(phrase)]
    short = [sentence for sentence in sentences if len(sentence.text) <= LONGEST_SENTENCE]
    return [sentence for sentence in short if not any(key <= stems(sentence.text) for key in forbidden)]


def _fill(parts: Sequence[Part], sentences: Sequence[Sentence], mentions: Sequence[str]) -> None:
    """Assign each sentence to the part that it fits best, in the order of their affinity."""
    offers = sorted(_offers(parts, sentences, mentions), key=lambda offer: -offer[0])
    taken: set[int] = set()
    for _, index, sentence in offers:
        length = sum(1 for _ in words(sentence.text))
        if sentence.start not in taken and parts[index].has_room(length):
            parts[index].add(sentence, length)
            taken.add(sentence.start)


def _offers(
    parts: Sequence[Part], sentences: Sequence[Sentence], mentions: Sequence[str]
) -> Iterator[tuple[float, int, Sentence]]:
    for number, sentence in enumerate(sentences):
        known = stems(sentence.text)
        for index, part in enumerate(parts):
            affinity = part.affinity(known, mentions) + _place(part, number, len(sentences))
            if affinity > 0:
                yield affinity, index, sentence


def _place(part: Part, number: int, count: int) -> float:
    """Return extra weight for an introduction at the start of the source, and for a conclusion at its end."""
    heading = folded(part.section.heading)
    fits = (
        number < EDGE if heading == "introduction" else heading in CLOSING_HEADINGS and number >= count - EDGE
    )
    return EDGE_WEIGHT if fits else 0


def _covers(parts: Sequence[Part], phrase: str) -> bool:
    wanted = stems(phrase)
    return any(wanted <= stems(sentence.text) for part in parts for sentence in part.sentences)


def _part_data(part: Part) -> dict[str, Any]:
    return {
        "level": 2,
        "heading": part.section.heading,
        "keywords": list(part.section.keywords),
        "subheadings": list(part.section.subheadings),
        "budget": part.section.words,
        "words": part.words,
        "paragraphs": part.paragraphs(),
    }


def _article(brief: Brief, parts: Sequence[Part], mentions: Sequence[dict[str, Any]]) -> str:
    lines = [f"# {brief.title}", "", f"*For: {brief.audience}. {brief.angle}.*", ""]
    for part in parts:
        lines += [f"## {part.section.heading}", ""]
        lines += [f"- {subheading}" for subheading in part.section.subheadings]
        lines += [""] if part.section.subheadings else []
        for paragraph in part.paragraphs() or [GAP]:
            lines += [paragraph, ""]
    missing = [one_line(mention["phrase"]) for mention in mentions if not mention["covered"]]
    if missing:
        lines += ["## Still to be written", "", *[f"- {phrase}: {GAP}" for phrase in missing], ""]
    return "\n".join(lines)
