"""What the model knows of an activity: plain objects that point at each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.state_machine.life import ENDED, LIVE, OPEN, SUCCESSORS

URGENT, GATED, NORMAL, BACKGROUND = 1, 5, 10, 20


@dataclass(frozen=True)
class Rules:
    """How people decide. Times are those of every question of a run of the machine, so that questions fall due as they were asked."""

    quorum: int = 1
    voters: int | None = None
    on_timeout: str | None = None
    asked_by: str | None = None

    @property
    def voted(self) -> bool:
        return self.quorum > 1

    def outcome(self, votes: dict[str, str]) -> str | None:
        given = list(votes.values())
        if given.count("approve") >= self.quorum:
            return "approve"
        enough = self.quorum if self.voters is None else self.voters - self.quorum + 1
        return "reject" if given.count("reject") >= enough else None


@dataclass(eq=False)
class Attempt:
    """One run of an agent, as its agent knows it."""

    task: Task
    token: Any = None
    state: str = "running"
    tool: str = ""
    output: str | None = None
    error: str | None = None
    #: Its worker died with it: nobody will report about it.
    orphaned: bool = False
    accepted: bool = False
    calls: int = 0
    #: The decisions that it was told of.
    told: list[Task] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return self.task.attempt is self and self.state == "running"


@dataclass(eq=False)
class Letter:
    """A failure for good."""

    state: str = "open"
    told: bool = False
    escalation: Task | None = None


@dataclass(eq=False)
class Link:
    """An approval and something that it is about."""

    approval: Task
    task: Task
    state: str = "waiting"


@dataclass(eq=False)
class Task:
    """An activity. `agent` is its role; without one it is a person's."""

    agent: str | None = None
    parent: Task | None = None
    link: str | None = None
    gate: bool = False
    approval_wanted: bool = False
    blocking: bool = True
    rules: Rules | None = None
    most_attempts: int = 3
    key: str | None = None
    round: int = 1
    run: Any = None  # of a pipeline
    step: str | None = None
    taken_over: str | None = None
    #: It may not start yet. Neither may who takes it over.
    not_before: bool = False
    #: Of the engine's scale, lower first. Its children have one that follows from this.
    priority: int = NORMAL
    #: It comes from the schedule, and so does whatever comes of it.
    scheduled: bool = False

    #: There is a reason to run and none to wait; or its time, a retry's or its money's has not come: then all reasons to run wait.
    due: bool = False
    later: bool = False
    waits_for_money: bool = False
    #: Its last run has put it off: for a retry, or for a time that its provider has asked for.
    delay: str | None = None
    #: A person has let its next run go past the pauses of its tenant.
    goes_past_pauses: bool = False
    #: Decisions that no run has heard of to a good end.
    news: list[Task] = field(default_factory=list)

    id: UUID | None = None
    status: str = "created"
    runs: int = 0
    attempts: int = 0
    stalls: int = 0
    fruitless: int = 0  # wakes since it got anywhere
    waits_for: Task | None = None
    attempt: Attempt | None = None
    children: list[Task] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)  # of this to approvals
    linked: list[Link] = field(default_factory=list)  # of this approval
    votes: dict[str, str] = field(default_factory=dict)
    #: Its rules or a person have said by when it should be done, and what happens then is still to come: first what rules say, in the order
    #: in which it was asked, then what people have said, in theirs. By the clock all of that lies behind the end of the test.
    has_due_time: bool = False
    due_rank: int = 0
    deadline_ahead: bool = False

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent.children.append(self)
            self.scheduled = self.parent.scheduled
        self.priority = self._first_priority()
        if self.agent is not None:
            self.due, self.later = not self.not_before, self.not_before
        else:
            self.has_due_time = self.rules is not None and self.rules.on_timeout is not None
        if self.link == "reassigned_from" and self.parent is not None and not self.has_due_time:
            self.has_due_time, self.due_rank = self.parent.has_due_time, self.parent.due_rank
        self.deadline_ahead = self.has_due_time

    def _first_priority(self) -> int:
        if self.parent is not None and self.link in ("subtask", "reassigned_from"):
            return self.parent.priority
        if self.parent is not None and self.link in ("revision_of", "review", "resolution"):
            return min(self.parent.priority, GATED)
        return {"gate": GATED, "approval": GATED, "escalation": URGENT}.get(self.link or "", self.priority)

    @property
    def is_urgent(self) -> bool:
        return self.priority < GATED

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def open(self) -> bool:
        return self.status in OPEN

    @property
    def decision(self) -> bool:
        """Whether people answer it with a yes or a no and with nothing else."""
        taken_over = self.link == "reassigned_from" and self.taken_over
        return self.link in ("gate", "review", "approval") or (self.gate and not taken_over)

    @property
    def letter(self) -> Letter | None:
        return next((letter for letter in self.letters if letter.state == "open"), None)

    @property
    def line(self) -> list[Task]:
        """This and everything whose place it has taken, newest first."""
        line = [self]
        while line[-1].link in SUCCESSORS and line[-1].parent is not None:
            line.append(line[-1].parent)
        return line

    @property
    def origin(self) -> Task:
        return self.line[-1]

    @property
    def newest(self) -> Task:
        """What stands in for this by now."""
        found = self
        while found.status in ("rejected", "reassigned") and (after := found.successor):
            found = after
        return found

    @property
    def successor(self) -> Task | None:
        return next((child for child in reversed(self.children) if child.link in SUCCESSORS), None)

    def dependents(self, kinds: set[str]) -> Iterator[Task]:
        """Everything that ends with this, all the way down; not what takes its own place."""
        for child in self.children:
            if child.link in kinds:
                yield from child.with_all_below(kinds)

    def with_all_below(self, kinds: set[str]) -> Iterator[Task]:
        yield self
        for child in self.children:
            if child.link in kinds or child.link in SUCCESSORS:
                yield from child.with_all_below(kinds)

    @property
    def waiting_links(self) -> list[Link]:
        return [link for link in self.links if link.state == "waiting"]

    @property
    def is_asked_about(self) -> bool:
        """Whether an open question holds it: an approval about it, or a review that its agent has asked for."""
        reviews = [child for child in self.children if child.link == "review" and child.open]
        return bool(self.waiting_links or reviews)

    @property
    def tree(self) -> list[Task]:
        """All members of the tree of subtasks that this stands in."""
        root = self
        while root.link in SUCCESSORS | {"subtask"} and root.parent is not None:
            root = root.parent
        found, to_see = [], [root]
        while to_see:
            member = to_see.pop()
            found.append(member)
            to_see += [child for child in member.children if child.link in SUCCESSORS | {"subtask"}]
        return found

    @property
    def depth(self) -> int:
        depth, member = 0, self
        while member.link in SUCCESSORS | {"subtask"} and member.parent is not None:
            depth += member.link == "subtask"
            member = member.parent
        return depth

    @property
    def ended(self) -> bool:
        return self.status in ENDED
