"""What is checked, and what a check says."""

from __future__ import annotations

from dataclasses import dataclass, field

#: These hold at every moment.
SAFETY = {
    "I01": "An activity has one live run while an agent has it, and none otherwise",
    "I02": "Runs of one activity never overlap",
    "I03": "Statuses change along declared transitions only",
    "I04": "The history of an activity is unbroken and ends in its status",
    "I05": "At most one result is accepted per wake, never one of a superseded run",
    "I06": "Fencing numbers only grow",
    "I08": "What is ready has a wake that asks for it",
    "I09": "What awaits approval has one open gate, and the reverse",
    "I10": "Pipelines go on: no step waits for what has settled, none has two activities",
    "I11": "No more runs at once than the caps allow",
    "I18": "Parent and child belong to the same tenant",
    "I20": "Row-level security is forced on every tenant's table",
    "I22": "Accepted outputs can be read",
    "I29": "A pipeline run's counter and status agree with its steps",
}

#: These hold about a minute after the last fault, once things have come to rest.
LIVENESS = {
    "I07": "Nothing is with an agent without a sign of life",
    "I19": "Nothing that is due waits while a worker is free",
    "I23": "The slots held in Redis are those of the live runs",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold: how often, and some of the rows concerned."""

    invariant: str
    count: int
    sample_ids: tuple[str, ...]
    description: str


@dataclass(slots=True)
class Report:
    """The outcome of a check. `not_checked` says why, by invariant."""

    violations: list[Violation] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, invariant: str, count: int, sample_ids: tuple[str, ...]) -> None:
        if count:
            self.violations.append(Violation(invariant, count, sample_ids, (SAFETY | LIVENESS)[invariant]))
        else:
            self.held.append(invariant)
