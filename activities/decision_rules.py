"""Decision rules of a question: due time, reminders, escalation, what happens on timeout, and how many people must agree.

The rules are copied into the activity when it is created; a later change of a pipeline does not affect open questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

REMINDER, ESCALATION, DUE = "reminder", "escalation", "due"
DEFAULT_ESCALATION_ROLE = "operator"


@dataclass(frozen=True, slots=True)
class Later:
    """An action some seconds after the question was created, and the role that is reminded or asked then."""

    after_seconds: float
    human_role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRules:
    """`on_timeout` is approve, reject, escalate or None, which leaves the question open. `quorum` of `voters` must agree.

    Without `self_approval` the requester, `asked_by`, may not decide.
    """

    due_seconds: float | None = None
    reminders: Sequence[Later] = ()
    escalation: Sequence[Later] = ()
    on_timeout: str | None = None
    quorum: int = 1
    voters: int | None = None
    options: Sequence[str] = ()
    asked_by: str = ""  # identity of the requester: a person, a token without a person, or an agent's run
    self_approval: bool = True

    @classmethod
    def asked(cls, *, self_approval: bool | None, quorum: int | None, **rules: Any) -> Self:
        """Return the rules of a new question. If nothing else was said, the requester may decide only where one decision is enough."""
        alone = cls(quorum=quorum or 1, **rules)
        return replace(alone, self_approval=not alone.is_voted_on if self_approval is None else self_approval)

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> Self:
        """Parse an activity's `decision_rules`."""
        values = dict(stored or {})
        for name in ("reminders", "escalation"):
            values[name] = tuple(Later(**later) for later in values.get(name, ()))
        return cls(**values)

    def as_json(self) -> dict[str, Any] | None:
        """Return the rules that differ from the defaults, as JSON; None if all are defaults."""
        members: dict[str, Any] = {
            "due_seconds": self.due_seconds,
            "reminders": [asdict(later) for later in self.reminders],
            "escalation": [asdict(later) for later in self.escalation],
            "on_timeout": self.on_timeout,
            "quorum": self.quorum if self.quorum != 1 else None,
            "voters": self.voters,
            "options": list(self.options),
            "asked_by": self.asked_by,
        }
        changed = {name: value for name, value in members.items() if value}
        return changed | ({} if self.self_approval else {"self_approval": False}) or None

    @property
    def is_voted_on(self) -> bool:
        return self.quorum > 1 or (self.voters or 1) > 1

    @property
    def needs_people(self) -> bool:
        """Whether the caller must be a known person: for one vote per person, or to exclude a requester who is a person or a token."""
        return self.is_voted_on or (not self.self_approval and self.asked_by.startswith(("user:", "token:")))

    def due_at(self, asked_at: datetime) -> datetime | None:
        return None if self.due_seconds is None else asked_at + timedelta(seconds=self.due_seconds)

    def deadlines(self, asked_at: datetime, due_at: datetime | None) -> Iterator[tuple[str, datetime, str]]:
        """Yield kind, time and role of everything that happens while nobody has decided."""
        for kind, chain in ((REMINDER, self.reminders), (ESCALATION, self.escalation)):
            for later in chain:
                yield kind, asked_at + timedelta(seconds=later.after_seconds), later.human_role
        if due_at is not None:
            last = self.escalation[-1].human_role if self.escalation else ""
            yield DUE, due_at, last or DEFAULT_ESCALATION_ROLE

    def may_vote(self, identity: str) -> bool:
        return self.self_approval or not self.asked_by or identity != self.asked_by

    def outcome(self, approvals: int, rejections: int) -> str | None:
        """Return `approve` or `reject` once the result is certain, None while votes are missing."""
        if approvals >= self.quorum:
            return "approve"
        # With a known number of voters, reject as soon as the remaining voters can no longer reach the quorum.
        enough = self.quorum if self.voters is None else self.voters - self.quorum + 1
        return "reject" if rejections >= enough else None


@dataclass(frozen=True, slots=True)
class Voter:
    """The person or program that decides: a displayed name, an authenticated identity, and the human roles it may decide for."""

    actor: str
    identity: str = ""
    human_roles: Sequence[str] = field(default_factory=tuple)
    decides_all: bool = True

    @property
    def is_person(self) -> bool:
        return self.identity.startswith("user:")

    def may_decide(self, human_role: str | None) -> bool:
        """Whether the voter may decide an item for `human_role`."""
        return self.decides_all or not self.human_roles or human_role in (*self.human_roles, GENERAL_ROLE)


#: The role of items that name no role. Anyone who may decide at all may decide these.
GENERAL_ROLE = "reviewer"
