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
    "I08": "What is ready, or held before it has started, has a wake that asks for it",
    "I09": "What waits has somebody to wait for, and nobody is asked in vain",
    "I10": "Pipelines go on, and what was rejected or reassigned has one successor",
    "I11": "No more runs at once than the caps allow",
    "I14": "Every terminal failure has one dead letter, and people are asked about it once",
    "I15": "Each decision counts once, and all that hung on it knows",
    "I18": "Parent and child belong to the same tenant",
    "I20": "Row-level security is forced on every tenant's table",
    "I22": "Accepted outputs can be read",
    "I25": "What agents ask for with tools stays within the limits, and each call has one effect",
    "I29": "A pipeline run's counter and status agree with its steps",
    "I30": "Deadlines act once, in time and in order, and not after the answer",
    "I31": "Each time of a schedule fires once, and its jobs agree with the work that they stand for",
    "I41": "Budgets keep money for live runs alone, and as much as their reservations say",
    "I42": "The ledger holds of each run what the run has reported, and that it began",
    "I43": "What is spent and kept is within each budget's cap, unless an overshoot is on record",
}

#: These hold about a minute after the last fault, once things have come to rest.
LIVENESS = {
    "I07": "Nothing is with an agent without a sign of life",
    "I19": "Nothing that is due waits: work for a free worker, deadlines, failures to tell of",
    "I23": "The slots held in Redis are those of the live runs and of calls that go on",
    "I32": "Nothing of a schedule waits: no time that has come, no job to be made, no end to be told",
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
