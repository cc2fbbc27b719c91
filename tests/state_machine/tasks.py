"""The model's activities, runs and approvals: plain objects that refer to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.state_machine.life import ENDED, LIVE, OPEN, SUCCESSORS

URGENT, GATED, NORMAL, BACKGROUND = 1, 5, 10, 20


@dataclass(frozen=True)
class Rules:
    """How people decide. All questions have the same times, so they become due in the order in which they were asked."""

    quorum: int = 1
    voters: int | None = None
    on_timeout: str | None = None
    asked_by: str | None = None

    @property
    def voted(self) -> bool:
        return self.quorum > 1

    def outcome(self, votes: dict[str, str]) -> str | None:
        cast = list(votes.values())
        if cast.count("approve") >= self.quorum:
            return "approve"
        enough = self.quorum if self.voters is None else self.voters - self.quorum + 1
        return "reject" if cast.count("reject") >= enough else None


@dataclass(eq=False)
class Attempt:
    """One run of an agent."""

    task: Task
    token: Any = None
    state: str = "running"
    tool: str = ""
    output: str | None = None
    error: str | None = None
    #: Its worker died, so nobody will report about it.
    orphaned: bool = False
    accepted: bool = False
    calls: int = 0
    #: The decisions that the run got.
    decisions: list[Task] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return self.task.attempt is self and self.state == "running"


@dataclass(eq=False)
class Letter:
    """A dead letter."""

    state: str = "open"
    reported: bool = False
    escalation: Task | None = None


@dataclass(eq=False)
class Link:
    """The link between an approval and a task."""

    approval: Task
    task: Task
    state: str = "waiting"


@dataclass(eq=False)
class Task:
    """An activity. `agent` is its role; without one the task is for a person."""

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
    #: It may not start yet, and neither may its successor.
    not_before: bool = False
    #: On the engine's scale, lower first. The priority of its children follows from it.
    priority: int = NORMAL
    #: It comes from the schedule, and so do its children.
    scheduled: bool = False

    #: `due`: it has a reason to run and none to wait. `later`: its reasons to run wait for its date, a retry or money.
    due: bool = False
    later: bool = False
    waits_for_money: bool = False
    #: Why its last run delayed it: a retry, or a time that the provider has asked for.
    delay: str | None = None
    #: A person has let its next run ignore the pauses of its tenant.
    goes_past_pauses: bool = False
    #: Decisions that no successful run has got yet.
    news: list[Task] = field(default_factory=list)

    id: UUID | None = None
    status: str = "created"
    runs: int = 0
    attempts: int = 0
    stalls: int = 0
    fruitless: int = 0  # wakes without progress
    waits_for: Task | None = None
    attempt: Attempt | None = None
    children: list[Task] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)  # of this to approvals
    linked: list[Link] = field(default_factory=list)  # of this approval
    votes: dict[str, str] = field(default_factory=dict)
    #: Whether its rules or a person have set a due time, and whether that is still ahead. Due times of rules come first, in the order
    #: of the questions, then those of people, in the order in which they were set. By the clock all are after the end of the test.
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
        """Whether people can only approve or reject it."""
        taken_over = self.link == "reassigned_from" and self.taken_over
        return self.link in ("gate", "review", "approval") or (self.gate and not taken_over)

    @property
    def letter(self) -> Letter | None:
        return next((letter for letter in self.letters if letter.state == "open"), None)

    @property
    def line(self) -> list[Task]:
        """This task and those that it has replaced, newest first."""
        line = [self]
        while line[-1].link in SUCCESSORS and line[-1].parent is not None:
            line.append(line[-1].parent)
        return line

    @property
    def origin(self) -> Task:
        return self.line[-1]

    @property
    def newest(self) -> Task:
        """The last successor of this task."""
        task = self
        while task.status in ("rejected", "reassigned") and (after := task.successor):
            task = after
        return task

    @property
    def successor(self) -> Task | None:
        return next((child for child in reversed(self.children) if child.link in SUCCESSORS), None)

    def dependents(self, kinds: set[str]) -> Iterator[Task]:
        """Yield every task that ends with this one, at any depth, except its successors."""
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
    def has_open_question(self) -> bool:
        """Whether an open question holds it: an approval about it, or a review that its agent has requested."""
        reviews = [child for child in self.children if child.link == "review" and child.open]
        return bool(self.waiting_links or reviews)

    @property
    def tree(self) -> list[Task]:
        """All members of its tree of subtasks."""
        root = self
        while root.link in SUCCESSORS | {"subtask"} and root.parent is not None:
            root = root.parent
        members, to_visit = [], [root]
        while to_visit:
            member = to_visit.pop()
            members.append(member)
            to_visit += [child for child in member.children if child.link in SUCCESSORS | {"subtask"}]
        return members

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
