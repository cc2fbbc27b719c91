"""The review: applies a reviewer's notes to a brief, sentence by sentence.

Every sentence appears in the list of changes, with what was done or with the reason why nothing was done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import lengths
from .brief import Brief
from .request_patterns import CLAUSE_BREAK
from .revisions import Outcome, apply
from .words import one_line, sentences

LONGEST_NOTES = 5000  # characters
BULLETS = " \t-*•–"  # noqa: RUF001


@dataclass(frozen=True, slots=True)
class Change:
    """The outcome of one sentence of the notes."""

    sentence: str
    acted: bool
    result: str

    def as_data(self) -> dict[str, Any]:
        """Return the change as the data of an output."""
        return {"sentence": self.sentence, "acted": self.acted, "result": self.result}

    def as_markdown(self) -> str:
        """Return the change as an item of the list in the brief."""
        return f"- “{self.sentence}” → {'' if self.acted else '**not acted on:** '}{self.result}"


def revise(brief: Brief, notes: str) -> tuple[Brief, list[Change]]:
    """Return the brief with the changes, and one change per sentence. A word limit is applied last."""
    changes = []
    for sentence in _sentences(notes[:LONGEST_NOTES]):
        brief, change = _handle(brief, sentence)
        changes.append(change)
    if len(notes) > LONGEST_NOTES:
        unread = one_line(notes[LONGEST_NOTES:], 80)
        changes.append(
            Change(unread, acted=False, result=f"only {LONGEST_NOTES} characters of notes are read")
        )
    return lengths.fitted(brief), changes


def _sentences(notes: str) -> list[str]:
    lines = [line.strip(BULLETS) for line in notes.splitlines()]
    return [sentence.text for line in lines for sentence in sentences(line)]


def _handle(brief: Brief, sentence: str) -> tuple[Brief, Change]:
    outcomes: list[Outcome] = []
    for clause in CLAUSE_BREAK.split(sentence):
        outcomes.append(apply(brief, clause))
        brief = outcomes[-1].brief
    acted = any(outcome.acted for outcome in outcomes)
    results = [
        outcome.result if outcome.acted or not acted else f"but: {outcome.result}" for outcome in outcomes
    ]
    return brief, Change(one_line(sentence), acted, "; ".join(dict.fromkeys(results)))
