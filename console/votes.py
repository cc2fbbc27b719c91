"""What has been said so far where several must agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from activities.decision_rules import DecisionRules
from console.wording import named


@dataclass(frozen=True, slots=True)
class Ballot:
    """One person's word."""

    who: str
    yes: bool
    option: str
    notes: str


@dataclass(frozen=True, slots=True)
class Votes:
    """What has been said so far where several must agree."""

    needed: int
    of: int | None
    approvals: int
    given: Sequence[Ballot]


def votes_of(rules: DecisionRules, given: Sequence[Any]) -> Votes | None:
    if not rules.is_voted_on:
        return None
    ballots = [
        Ballot(named(vote.actor), vote.decision == "approve", vote.chosen_option or "", vote.notes)
        for vote in given
    ]
    return Votes(rules.quorum, rules.voters, sum(ballot.yes for ballot in ballots), ballots)
