"""The keyword researcher: finds the subjects of a text, as phrases of up to three words.

Every run of neighbouring content words is counted. A phrase scores by its frequency, more when it is longer,
less for every time it only occurs inside a longer phrase (the C-value of Frantzi and Ananiadou). Plural and
singular are counted together and shown in the form that the text prefers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import source
from .job import Answer, Job
from .markdown import Block, Document
from .stop_words import language_of, stop_words
from .words import SIGN, Word, folded, one_line, stem, words

LONGEST_PHRASE = 3  # words
LONGEST_WORD = 40  # characters; what is longer is no word
ENOUGH_REPEATED = 5  # With fewer phrases that occur twice, those that occur once are taken in,
ONCE_WEIGHT = 0.4  # but ranked behind them: a long phrase that occurs once is mostly chance.
SHOWN_POSITIONS = 20

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keyword:
    """A phrase of the text with its weight and the offsets where it occurs."""

    phrase: str
    score: float
    count: int
    positions: tuple[int, ...] = ()

    @property
    def key(self) -> frozenset[str]:
        """The stems of its words, for comparisons."""
        return frozenset(stem(word.text) for word in words(self.phrase))

    def as_data(self) -> dict[str, Any]:
        """Return the keyword as the data of an output."""
        return {
            "phrase": self.phrase,
            "score": self.score,
            "count": self.count,
            "positions": list(self.positions),
        }


@dataclass(slots=True)
class Candidate:
    """Every occurrence of one phrase."""

    positions: list[int] = field(default_factory=list)
    spellings: Counter[str] = field(default_factory=Counter)
    inside: list[int] = field(default_factory=list)  # how often each longer phrase around it occurs

    @property
    def count(self) -> int:
        """Number of occurrences."""
        return len(self.positions)

    def score(self, length: int) -> float:
        """The C-value."""
        nested = sum(self.inside) / len(self.inside) if self.inside else 0.0
        weight = 1 if self.count > 1 else ONCE_WEIGHT
        return weight * math.log2(length + 1) * (self.count - nested)


def research(job: Job) -> Answer:
    """The skill: returns a table of keywords, and the text for the next agent."""
    document = source.read_document(job.text)
    limit = job.number("limit", 20, least=1, most=100)
    language = language_in(document)
    keywords = extract(document, limit=limit, language=language)
    data = {
        "title": document.title,
        "language": language,
        "word_count": sum(1 for block in document.blocks for _ in block.words()),
        "keywords": [keyword.as_data() for keyword in keywords],
        "source": source.Source(document.title, job.text, truncated=False).as_data(),
    }
    return Answer(content=_table(document.title, language, keywords), data=data)


def extract(document: Document, *, limit: int = 20, language: str | None = None) -> list[Keyword]:
    """Return the best keywords of a document, best first."""
    stops = stop_words(language or language_in(document))
    ranked = _worth_ranking(_candidates(document.blocks, stops))
    _note_nesting(ranked)
    keywords = [_keyword(key, candidate) for key, candidate in ranked.items()]
    keywords.sort(key=lambda keyword: (-keyword.score, keyword.positions[0]))
    return [keyword for keyword in keywords if keyword.score > 0][:limit]


def of_job(job: Job, document: Document) -> list[Keyword]:
    """Return the keywords in the input, else those of the document."""
    given = source.find(job.data, "keywords")
    handed_on = [_from_data(item) for item in given] if isinstance(given, list) else []
    return [keyword for keyword in handed_on if keyword] or extract(document)


def language_in(document: Document) -> str:
    """Return the language of the document."""
    return language_of(folded(word.text) for block in document.blocks for word in block.words())


def _candidates(blocks: Iterable[Block], stops: frozenset[str]) -> dict[Key, Candidate]:
    candidates: defaultdict[Key, Candidate] = defaultdict(Candidate)
    for block in blocks:
        for run in _runs(block, stops):
            for first in range(len(run)):
                for last in range(first, min(first + LONGEST_PHRASE, len(run))):
                    _count(candidates, run[first : last + 1])
    return candidates


def _runs(block: Block, stops: frozenset[str]) -> Iterator[list[Word]]:
    """Return runs of neighbouring content words. Stop words, numbers and punctuation end a run."""
    run: list[Word] = []
    for word in block.words():
        is_content = _is_content(word.text, stops)
        gap = block.text[run[-1].end - block.start : word.start - block.start] if run else ""
        if run and (not is_content or gap.strip()):
            yield run
            run = []
        if is_content:
            run.append(word)
    if run:
        yield run


def _is_content(text: str, stops: frozenset[str]) -> bool:
    has_letter = any(sign.isalpha() for sign in text)
    return has_letter and len(text) <= LONGEST_WORD and folded(text) not in stops


def _count(candidates: defaultdict[Key, Candidate], run: list[Word]) -> None:
    if len(run) == 1 and _is_too_short(run[0].text):
        return
    candidate = candidates[tuple(stem(word.text) for word in run)]
    candidate.positions.append(run[0].start)
    between = "" if SIGN.match(run[0].text) else " "
    candidate.spellings[between.join(word.text for word in run)] += 1


def _is_too_short(text: str) -> bool:
    """One or two letters say little, unless they are an abbreviation such as EU."""
    return len(text) < 2 or (len(text) == 2 and not text.isupper())


def _worth_ranking(candidates: dict[Key, Candidate]) -> dict[Key, Candidate]:
    """What occurs at least twice; in a text too short for that, everything."""
    repeated = {key: candidate for key, candidate in candidates.items() if candidate.count > 1}
    return repeated if len(repeated) >= ENOUGH_REPEATED else candidates


def _note_nesting(candidates: dict[Key, Candidate]) -> None:
    for key, candidate in candidates.items():
        parts = {key[i:j] for i in range(len(key)) for j in range(i + 1, len(key) + 1)} - {key}
        for part in parts & candidates.keys():
            candidates[part].inside.append(candidate.count)


def _keyword(key: Key, candidate: Candidate) -> Keyword:
    score = round(candidate.score(len(key)), 2)
    return Keyword(_spelling(candidate), score, candidate.count, tuple(candidate.positions[:SHOWN_POSITIONS]))


def _spelling(candidate: Candidate) -> str:
    """Return the most frequent form; without the capital of a sentence's start if it occurs without it."""
    forms: Counter[str] = Counter()
    for text, count in candidate.spellings.items():
        forms[folded(text)] += count
    best = max(forms, key=lambda form: forms[form])
    same = [text for text in candidate.spellings if folded(text) == best]
    return min(same, key=lambda text: sum(sign.isupper() for sign in text))


def _from_data(item: Any) -> Keyword | None:
    """Parse a keyword of the input. A person may have shortened the list to plain phrases."""
    if isinstance(item, str) and item.strip():
        return Keyword(one_line(item, 80), 1.0, 1)
    if not isinstance(item, dict) or not isinstance(item.get("phrase"), str) or not item["phrase"].strip():
        return None
    score, count = item.get("score"), item.get("count")
    return Keyword(
        phrase=one_line(item["phrase"], 80),
        score=float(score) if isinstance(score, int | float) else 1.0,
        count=count if isinstance(count, int) else 1,
    )


def _table(title: str, language: str, keywords: list[Keyword]) -> str:
    rows = [
        f"| {rank} | {keyword.phrase} | {keyword.score:g} | {keyword.count} | {keyword.positions[0]} |"
        for rank, keyword in enumerate(keywords, start=1)
    ]
    head = ["| # | phrase | score | count | first at |", "|--:|---|--:|--:|--:|"]
    found = "\n".join([*head, *rows]) if rows else "No phrase stands out in this text."
    return f"# Keywords of “{title}”\n\nLanguage: {language}\n\n{found}\n"
