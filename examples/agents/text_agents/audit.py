"""The site auditor: measures how easy a text is to read, and how well it covers its keywords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import keywords as researcher
from . import readability, source
from .job import Answer, Job
from .keywords import Keyword
from .markdown import Document
from .words import Word, folded, one_line, stem, words

COVERED_KEYWORDS = 10
OPENING_WORDS = 100  # by which readers and search engines judge a text
REPORTED = 10  # findings of one kind in the report; the data has up to ten times as many


def audit(job: Job) -> Answer:
    """The skill: a report with measures, findings and advice."""
    text = source.of_job(job)
    document = source.read_document(text.text)
    sentences = document.sentences()
    longest = job.number("long_sentence_words", 25, least=5, most=200)
    measures = readability.measure(document)
    data: dict[str, Any] = {
        "title": text.title,
        "source_truncated": text.truncated,
        "language": researcher.language_in(document),
        "sentences": measures.sentences,
        "words": measures.words,
        "syllables": measures.syllables,
        "reading_ease": measures.reading_ease,
        "grade_level": measures.grade_level,
        "verdict": measures.verdict,
        "long_sentences": [
            {"words": count, "text": one_line(sentence.text), "start": sentence.start}
            for count, sentence in readability.long_sentences(sentences, longest)[: REPORTED * 10]
        ],
        "passive_phrases": _places(list(readability.passive_phrases(sentences))),
        "repeated_words": _places(list(readability.repeated_words(sentences))),
        "keyword_coverage": _coverage(document, researcher.of_job(job, document)[:COVERED_KEYWORDS]),
    }
    data["advice"] = _advice(data, longest)
    return Answer(_report(data, longest), data)


def _places(found: Sequence[Word]) -> list[dict[str, Any]]:
    return [{"text": one_line(word.text), "start": word.start} for word in found[: REPORTED * 10]]


def _coverage(document: Document, keywords: Sequence[Keyword]) -> list[dict[str, Any]]:
    stems = [stem(word.text) for block in document.blocks for word in block.words()]
    title = [stem(word.text) for word in words(document.title)]
    coverage = []
    for keyword in keywords:
        key = [stem(word.text) for word in words(keyword.phrase)]
        count = _occurrences(stems, key)
        coverage.append(
            {
                "phrase": keyword.phrase,
                "count": count,
                "per_thousand_words": round(1000 * count / len(stems), 1),
                "in_title": _occurrences(title, key) > 0,
                "in_opening": _occurrences(stems[:OPENING_WORDS], key) > 0,
            }
        )
    return coverage


def _occurrences(stems: Sequence[str], key: Sequence[str]) -> int:
    if not key:
        return 0
    starts = (index for index, found in enumerate(stems) if found == key[0])
    return sum(list(stems[index : index + len(key)]) == list(key) for index in starts)


def _advice(data: dict[str, Any], longest: int) -> list[str]:
    late = [item["phrase"] for item in data["keyword_coverage"][:3] if not item["in_opening"]]
    wanted = {
        f"Split the {len(data['long_sentences'])} sentences of more than {longest} words.": data[
            "long_sentences"
        ],
        "Name who acts where the passive hides it.": len(data["passive_phrases"]) * 10 > data["sentences"],
        "Delete the repeated words.": data["repeated_words"],
        f"Say in the first {OPENING_WORDS} words what it is about: {', '.join(late)}.": late,
        "Use shorter words: the text asks for more than twelve years of school.": data["grade_level"] > 12,
    }
    return [advice for advice, is_due in wanted.items() if is_due] or ["Nothing needs to be changed."]


def _report(data: dict[str, Any], longest: int) -> str:
    is_english = folded(data["language"]) == "english"
    note = "" if is_english else f" (made for English; this text is {data['language']})"
    lines = [f"# Readability of “{data['title']}”", "", "| measure | value |", "|---|--:|"]
    lines += [f"| {name} | {data[name]} |" for name in ("sentences", "words", "syllables")]
    lines += [f"| Flesch reading ease{note} | {data['reading_ease']:g}, {data['verdict']} |"]
    lines += [f"| Flesch-Kincaid grade level{note} | {data['grade_level']:g} |", ""]
    lines += ["This agent received only the start of the text.", ""] if data["source_truncated"] else []
    lines += ["## Advice", ""]
    lines += [f"- {advice}" for advice in data["advice"]]
    long_ones = [f"{item['words']} words: {item['text']}" for item in data["long_sentences"]]
    lines += _findings(f"Sentences of more than {longest} words", long_ones)
    lines += _findings("Passive-like phrases", [item["text"] for item in data["passive_phrases"]])
    lines += _findings(
        "Repeated words", [f"{item['text']} {item['text']}" for item in data["repeated_words"]]
    )
    return "\n".join([*lines, *_coverage_table(data["keyword_coverage"]), ""])


def _findings(name: str, found: Sequence[str]) -> list[str]:
    if not found:
        return []
    more = [f"- and {len(found) - REPORTED} more"] if len(found) > REPORTED else []
    return ["", f"## {name}", "", *[f"- {text}" for text in found[:REPORTED]], *more]


def _coverage_table(coverage: Sequence[dict[str, Any]]) -> list[str]:
    if not coverage:
        return []
    head = [
        "",
        "## Keywords",
        "",
        "| keyword | count | per 1,000 words | in title | in opening |",
        "|---|--:|--:|---|---|",
    ]
    return head + [
        f"| {item['phrase']} | {item['count']} | {item['per_thousand_words']:g}"
        f" | {'yes' if item['in_title'] else 'no'} | {'yes' if item['in_opening'] else 'no'} |"
        for item in coverage
    ]
