"""How people decide something: by when, who is reminded, who is asked next, what happens when nobody decides, how many must agree.

The rules are frozen into the activity when it is asked for; a later change of a pipeline changes no question that is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

REMINDER, ESCALATION, DUE = "reminder", "escalation", "due"
DEFAULT_ESCALATION_ROLE = "operator"


@dataclass(frozen=True, slots=True)
class Later:
    """An action so many seconds after the question was asked, and the role that is reminded or asked then."""

    after_seconds: float
    human_role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRules:
    """`on_timeout` is approve, reject, escalate or None: the question just stays open. `quorum` of `voters` must agree.

    Without `self_approval` anyone who asked, `asked_by`, has no say in the answer.
    """

    due_seconds: float | None = None
    reminders: Sequence[Later] = ()
    escalation: Sequence[Later] = ()
    on_timeout: str | None = None
    quorum: int = 1
    voters: int | None = None
    options: Sequence[str] = ()
    asked_by: str = (
        ""  # identity of who asked: a person, a token that nobody stands behind, or an agent's run
    )
    self_approval: bool = True

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> Self:
        """From an activity's `decision_rules`."""
        values = dict(stored or {})
        for name in ("reminders", "escalation"):
            values[name] = tuple(Later(**later) for later in values.get(name, ()))
        return cls(**values)

    def as_json(self) -> dict[str, Any] | None:
        """What differs from the defaults, as JSON; None when nothing does."""
        plain: dict[str, Any] = {
            "due_seconds": self.due_seconds,
            "reminders": [_plain(later) for later in self.reminders],
            "escalation": [_plain(later) for later in self.escalation],
            "on_timeout": self.on_timeout,
            "quorum": self.quorum if self.quorum != 1 else None,
            "voters": self.voters,
            "options": list(self.options),
            "asked_by": self.asked_by,
        }
        members = {name: value for name, value in plain.items() if value}
        return members | ({} if self.self_approval else {"self_approval": False}) or None

    @property
    def is_voted_on(self) -> bool:
        """Whether more than one vote is needed."""
        return self.quorum > 1 or (self.voters or 1) > 1

    @property
    def needs_people(self) -> bool:
        """Whether it matters which person decides: each person has one vote, or the person who asked has none, by session or by token."""
        return self.is_voted_on or (not self.self_approval and self.asked_by.startswith(("user:", "token:")))

    def due_at(self, asked_at: datetime) -> datetime | None:
        return None if self.due_seconds is None else asked_at + timedelta(seconds=self.due_seconds)

    def deadlines(self, asked_at: datetime) -> Iterator[tuple[str, datetime, str]]:
        """Kind, time and role of everything that happens unless somebody has decided before."""
        for kind, chain in ((REMINDER, self.reminders), (ESCALATION, self.escalation)):
            for later in chain:
                yield kind, asked_at + timedelta(seconds=later.after_seconds), later.human_role
        if due_at := self.due_at(asked_at):
            last = self.escalation[-1].human_role if self.escalation else ""
            yield DUE, due_at, last or DEFAULT_ESCALATION_ROLE

    def may_vote(self, identity: str) -> bool:
        return self.self_approval or not self.asked_by or identity != self.asked_by

    def outcome(self, approvals: int, rejections: int) -> str | None:
        """`approve` or `reject` once it is certain, None while votes are missing."""
        if approvals >= self.quorum:
            return "approve"
        # With a known number of voters it is lost as soon as those who are left cannot make up the quorum any more.
        enough = self.quorum if self.voters is None else self.voters - self.quorum + 1
        return "reject" if rejections >= enough else None


def _plain(later: Later) -> dict[str, Any]:
    return {"after_seconds": later.after_seconds, "human_role": later.human_role}


@dataclass(frozen=True, slots=True)
class Voter:
    """Who decides: the name shown in the history, the identity that the caller cannot choose, and the human roles they may decide for."""

    actor: str
    identity: str = ""
    human_roles: Sequence[str] = field(default_factory=tuple)
    decides_all: bool = True

    @property
    def is_person(self) -> bool:
        return self.identity.startswith("user:")

    def may_decide(self, human_role: str | None) -> bool:
        """Whether an item asked of `human_role` is theirs to decide."""
        return self.decides_all or not self.human_roles or human_role in (*self.human_roles, GENERAL_ROLE)


#: What anybody who may decide at all may decide: the role that is asked when none is named.
GENERAL_ROLE = "reviewer"
