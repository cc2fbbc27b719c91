"""Words and sentences of any language, with their offsets in the text.

Every pattern takes linear time for any text, because users may send anything.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

# Marks that belong to the letter before them but are no letters for `re`: accents, vowel signs, Thai tones.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0903\u093a-\u094f\u0980-\u0dff\u0e00-\u0eff"
_LETTERS = rf"(?:[^\W_]|[{_MARKS}])+"
_JOINERS = "'\N{RIGHT SINGLE QUOTATION MARK}\N{NON-BREAKING HYPHEN}-"
WORD = re.compile(rf"{_LETTERS}(?:(?:[{_JOINERS}]|(?<=\d)[.,](?=\d)){_LETTERS})*")
# Scripts without spaces: each sign is taken as a word.
SIGN = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_CLOSING = r"""["'»)\]\N{RIGHT DOUBLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}]{0,3}"""
_EAST_ASIAN_END = "[。！？]+[」』”]{0,3}"  # noqa: RUF001
SENTENCE_END = re.compile(rf"(?<![.!?…])(?:[.!?…]+{_CLOSING}(?=\s|$)|{_EAST_ASIAN_END})")

PLAIN = str.maketrans({"\N{RIGHT SINGLE QUOTATION MARK}": "'", "\N{NON-BREAKING HYPHEN}": "-"})
ABBREVIATIONS = "approx ca cf dr e.g etc fig i.e inc jr mr mrs ms no nr prof sr st vs z.b bzw usw"
VOWELS = re.compile("[aeiouyаеёиоуыэюяαεηιουω]+")  # noqa: RUF001
LONGEST_QUOTE = 240


class Word(NamedTuple):
    """A word as written, and its offset."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset after the word."""
        return self.start + len(self.text)


class Sentence(NamedTuple):
    """A sentence as written, and its offset."""

    text: str
    start: int


@cache
def word_set(spaced: str) -> frozenset[str]:
    """The words of a list that is written with spaces between them."""
    return frozenset(spaced.split())


def words(text: str, offset: int = 0) -> Iterator[Word]:
    """The words of a text in their order. Numbers and hyphenated words count as one."""
    for match in WORD.finditer(text):
        if SIGN.search(match[0]):
            yield from (Word(sign, offset + match.start() + index) for index, sign in enumerate(match[0]))
        else:
            yield Word(match[0], offset + match.start())


def sentences(text: str, offset: int = 0) -> Iterator[Sentence]:
    """The sentences of one paragraph; a piece without any word is not a sentence."""
    start = 0
    for match in SENTENCE_END.finditer(text):
        if _ends_a_sentence(text, match):
            yield from _sentence(text, start, match.end(), offset)
            start = match.end()
    yield from _sentence(text, start, len(text), offset)


def folded(word: str) -> str:
    """The word in the form in which words are compared: lower case, composed, straight apostrophe."""
    return unicodedata.normalize("NFC", word).casefold().translate(PLAIN)


def stem(word: str) -> str:
    """The folded word without an English plural or possessive ending: hive, hives and hive's are one."""
    base = folded(word).removesuffix("'s")
    if len(base) <= 3 or not base.endswith("s") or base.endswith(("ss", "us", "is", "'s")):
        return base
    if base.endswith("ies") and len(base) > 4:
        return base[:-3] + "y"
    if base.endswith(("sses", "shes", "ches", "xes", "zes")):
        return base[:-2]
    return base[:-1]


def syllables(word: str) -> int:
    """The syllables of an English word by its vowel groups; a fair guess for other alphabets with vowels."""
    letters = "".join(sign for sign in unicodedata.normalize("NFD", folded(word)) if sign.isalpha())
    count = len(VOWELS.findall(letters))
    return max(1, count - _has_silent_ending(letters))


def one_line(text: str, longest: int = LONGEST_QUOTE) -> str:
    """The text on one line, shortened for a quotation."""
    line = " ".join(text[: longest * 8].split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def sentence_case(phrase: str) -> str:
    """The phrase with its first letter in upper case and nothing else changed."""
    return phrase[:1].upper() + phrase[1:]


def _ends_a_sentence(text: str, match: re.Match[str]) -> bool:
    following = text[match.end() : match.end() + 40].lstrip()
    if following[:1].islower():
        return False
    if match[0] != ".":
        return True
    before = text[max(0, match.start() - 12) : match.start()].split()
    last = before[-1].strip("([\"'“\N{LEFT SINGLE QUOTATION MARK}") if before else ""
    is_initial = len(last) == 1 and last.isupper() and last != "I"
    return not is_initial and last.casefold() not in word_set(ABBREVIATIONS)


def _sentence(text: str, start: int, end: int, offset: int) -> Iterator[Sentence]:
    piece = text[start:end]
    if WORD.search(piece):
        skipped = len(piece) - len(piece.lstrip())
        yield Sentence(piece.strip(), offset + start + skipped)


def _has_silent_ending(letters: str) -> bool:
    """Whether the last vowel is written but not spoken: make, makes, marked; not table, wanted, boxes."""
    if len(letters) < 3:
        return False
    if letters.endswith("ed"):
        return letters[-3] not in "tdaeiouy"
    if letters.endswith("es"):
        return letters[-3] not in "sxzcgaeiouy" and not letters.endswith(("shes", "ches"))
    is_spoken_le = letters.endswith("le") and letters[-3] not in "aeiouy"
    return letters.endswith("e") and letters[-2] not in "aeiouy" and not is_spoken_le
