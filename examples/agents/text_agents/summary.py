"""The report writer: a summary of sentences of the text itself.

SumBasic (Nenkova and Vanderwende): take the sentence whose content words are most frequent on average, then
make its words less likely by squaring their probability, so that the next sentence says something else. The time
grows with the text times the number of chosen sentences, so a book is no problem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import keywords, source
from .job import Answer, Job
from .stop_words import stop_words
from .words import Sentence, folded, one_line, stem, word_set, words

SHORTEST_SENTENCE = 6  # words; shorter ones are rarely understood alone
LONGEST_SENTENCE = 45
POINTING_BACK = word_set("he she it they this that these those his her its their such so but and")
FIGURE = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class Scored:
    """A sentence with its content words and its number in the text."""

    sentence: Sentence
    number: int
    stems: tuple[str, ...]


def write(job: Job) -> Answer:
    """The skill: returns a summary, the sentences with figures, and the main keywords."""
    document = source.read_document(job.text)
    sentences = document.sentences()
    language = keywords.language_in(document)
    wanted = job.number("sentences", 5, least=1, most=50)
    chosen = summarize(sentences, wanted, stops=stop_words(language))
    figures = [one_line(sentence.text) for sentence in sentences if FIGURE.search(sentence.text)][:5]
    phrases = [keyword.phrase for keyword in keywords.extract(document, limit=8, language=language)]
    data: dict[str, Any] = {
        "title": document.title,
        "sentences_read": len(sentences),
        "summary": [{"sentence": _quoted(scored), "number": scored.number} for scored in chosen],
        "figures": figures,
        "keywords": phrases,
    }
    return Answer(_report(data), data)


def summarize(sentences: Sequence[Sentence], wanted: int, *, stops: frozenset[str]) -> list[Scored]:
    """Return the sentences that say most about the text, in its order."""
    numbered = enumerate(sentences, start=1)
    scored = [Scored(sentence, number, _stems(sentence, stops)) for number, sentence in numbered]
    left = [one for one in scored if _stands_alone(one.sentence)] or scored
    counts = Counter(name for one in left for name in one.stems)
    total = max(1, sum(counts.values()))
    likely = {name: count / total for name, count in counts.items()}
    taken: list[Scored] = []
    while left and len(taken) < wanted:
        best = max(left, key=lambda one: _weight(one, likely))
        taken.append(best)
        left = [one for one in left if one.sentence.text != best.sentence.text]
        likely.update({name: likely[name] ** 2 for name in set(best.stems)})
    return sorted(taken, key=lambda one: one.number)


def _stands_alone(sentence: Sentence) -> bool:
    """Whether a reader understands the sentence without the one before."""
    split = sentence.text.split()
    return SHORTEST_SENTENCE <= len(split) <= LONGEST_SENTENCE and folded(split[0]) not in POINTING_BACK


def _stems(sentence: Sentence, stops: frozenset[str]) -> tuple[str, ...]:
    return tuple(stem(word.text) for word in words(sentence.text) if folded(word.text) not in stops)


def _weight(scored: Scored, likely: dict[str, float]) -> float:
    return sum(likely[name] for name in scored.stems) / len(scored.stems) if scored.stems else 0.0


def _quoted(scored: Scored) -> str:
    return one_line(scored.sentence.text, 600)


def _report(data: dict[str, Any]) -> str:
    lines = [
        f"# Summary of “{data['title']}”",
        "",
        " ".join(item["sentence"] for item in data["summary"]),
        "",
    ]
    if data["figures"]:
        lines += ["## Figures", "", *[f"- {figure}" for figure in data["figures"]], ""]
    if data["keywords"]:
        lines += ["## Main subjects", "", ", ".join(data["keywords"]), ""]
    return "\n".join([*lines, f"*{len(data['summary'])} of {data['sentences_read']} sentences.*", ""])
