"""Readability: measures of a text. Pure functions, each with its formula.

The Flesch scores are defined for English. For other languages they only serve to compare texts with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .markdown import Document
from .words import Sentence, Word, folded, syllables, word_set, words

FORMS_OF_BE = word_set("am are be been being is was were isn't aren't wasn't weren't get gets got getting")
IRREGULAR_PARTICIPLES = word_set(
    """
    begun bought bound broken brought built caught chosen cut done drawn driven eaten fallen fed felt found
    given gone grown held hidden hit kept known laid led left lent lost made meant met paid put read ridden
    risen run said seen sent set shaken shown shut sold spent spoken spread stolen struck sung sworn taken
    taught thought thrown told understood won worn written
    """
)
NOT_PARTICIPLES = word_set("hundred indeed need red bed shed speed seed breed weed embed")
VERDICTS = ((90, "very easy"), (70, "easy"), (60, "plain"), (50, "fairly difficult"), (30, "difficult"))


@dataclass(frozen=True, slots=True)
class Measures:
    """Counts, and the two scores that follow from them."""

    sentences: int
    words: int
    syllables: int

    @property
    def reading_ease(self) -> float:
        """Flesch: 206.835 - 1.015 * words per sentence - 84.6 * syllables per word. Higher is easier."""
        return round(206.835 - 1.015 * self.words / self.sentences - 84.6 * self.syllables / self.words, 1)

    @property
    def grade_level(self) -> float:
        """Flesch-Kincaid: 0.39 * words per sentence + 11.8 * syllables per word - 15.59, in school years."""
        return round(0.39 * self.words / self.sentences + 11.8 * self.syllables / self.words - 15.59, 1)

    @property
    def verdict(self) -> str:
        """The reading ease in words."""
        return next((name for least, name in VERDICTS if self.reading_ease >= least), "very difficult")


def measure(document: Document) -> Measures:
    """Count a document without its headings, which are not sentences."""
    sentences = document.sentences()
    found = [word for sentence in sentences for word in words(sentence.text)]
    return Measures(len(sentences), len(found), sum(syllables(word.text) for word in found))


def long_sentences(sentences: Sequence[Sentence], longest: int) -> list[tuple[int, Sentence]]:
    """Sentences with more words than allowed, with their number of words, longest first."""
    counted = [(sum(1 for _ in words(sentence.text)), sentence) for sentence in sentences]
    return sorted((pair for pair in counted if pair[0] > longest), key=lambda pair: -pair[0])


def passive_phrases(sentences: Sequence[Sentence]) -> Iterator[Word]:
    """Find phrases that look like a passive: a form of "be", at most two adverbs, a past participle."""
    for sentence in sentences:
        found = list(words(sentence.text, sentence.start))
        for index, word in enumerate(found):
            if folded(word.text) in FORMS_OF_BE:
                last = _participle_after(found, index)
                if last is not None:
                    end = found[last].end - sentence.start
                    yield Word(sentence.text[word.start - sentence.start : end], word.start)


def repeated_words(sentences: Sequence[Sentence]) -> Iterator[Word]:
    """Find the second of two equal words in a row, as in "the the"."""
    for sentence in sentences:
        previous: Word | None = None
        for word in words(sentence.text, sentence.start):
            if previous and folded(previous.text) == folded(word.text) and word.text.isalpha():
                between = sentence.text[previous.end - sentence.start : word.start - sentence.start]
                if between.isspace():
                    yield word
            previous = word


def _participle_after(found: Sequence[Word], index: int) -> int | None:
    for position in range(index + 1, min(index + 4, len(found))):
        text = folded(found[position].text)
        if _is_participle(text):
            return position
        if not (text.endswith("ly") or text in {"not", "also", "often", "never", "always", "being", "been"}):
            return None
    return None


def _is_participle(text: str) -> bool:
    return text in IRREGULAR_PARTICIPLES or (
        text.endswith("ed") and len(text) > 3 and text not in NOT_PARTICIPLES
    )
