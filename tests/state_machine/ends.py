"""The model's ends of tasks, and what follows: parents wake, questions are closed, pipelines continue."""

from __future__ import annotations

from collections.abc import Sequence

from tests.state_machine.flow import Flow
from tests.state_machine.life import (
    DEPENDENTS,
    FAILED,
    GETS_ANSWERS,
    LIFE,
    MAY_BE_RESCHEDULED,
    SETTLED,
    WAITS_FOR,
    Refused,
)
from tests.state_machine.limits import Limits
from tests.state_machine.tasks import GATED, Attempt, Letter, Link, Task


class Ends:
    """All tasks of a tenant, oldest first, and its pipeline runs."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tasks: list[Task] = []
        self.attempts: list[Attempt] = []
        self.flows: list[Flow] = []
        self.due_times_set = 0
        self.has_money = True
        #: The pauses in force: (kind, name). Nothing new is granted under them.
        self.pauses: set[tuple[str, str]] = set()
        #: The roles that call the provider which may be paused.
        self.of_provider: frozenset[str] = frozenset()
        #: The roles whose provider refuses calls for now: (role, "urgent") for urgent work, (role, "rest") for other work.
        self.holds: set[tuple[str, str]] = set()
        #: How many activities of a role may run at once.
        self.caps: dict[str, int] = {}
        #: How many activities of a role with a rate may be granted for now.
        self.rates: dict[str, int] = {}

    def add(self, task: Task) -> Task:
        self.tasks.append(task)
        return task

    def is_paused(self, task: Task) -> bool:
        if ("role of all", task.agent) in self.pauses:
            return True
        if task.goes_past_pauses:
            return False
        pauses = {("role", task.agent), ("tenant", "")}
        if task.agent in self.of_provider:
            pauses.add(("provider", ""))
        if task.run is not None:
            pauses.add(("pipeline", task.run.key))
        if task.scheduled:
            pauses.add(("schedule", ""))
        return bool(pauses & self.pauses)

    def may_start(self, task: Task) -> bool:
        """Whether no reason to wait is left, except caps, rates, and budgets, which are checked at the claim."""
        held_back = (task.agent, "urgent" if task.is_urgent else "rest") in self.holds
        waits = not task.due or task.later or held_back or self.is_paused(task)
        return task.status == "created" and not waits

    def live_with(self, key: str | None) -> Task | None:
        return next((task for task in self.tasks if key and task.key == key and task.live), None)

    def happens(self, task: Task, what: str) -> None:
        self.check(task, what)
        task.status = LIFE[task.status][what]

    def check(self, task: Task, what: str) -> None:
        if what not in LIFE[task.status]:
            raise Refused(f"{task.status} {what}")

    def fails_permanently(self, task: Task) -> None:
        self.happens(task, "fails permanently")
        task.due = task.later = False
        task.delay = None
        if task.attempt is not None:
            task.news = [*task.attempt.decisions, *task.news]
        task.letters.append(Letter())
        self.ended(task)

    def link(self, question: Task, about: Sequence[Task], may_hold: Sequence[Task]) -> None:
        for task in about:
            link = Link(question, task, state="waiting" if task in may_hold else "skipped")
            task.links.append(link)
            question.linked.append(link)
            if task.status == "created" and task.agent:
                self.hold_if_questioned(task)

    def hold_if_questioned(self, task: Task) -> None:
        """Hold a task that could start while a question about it is open."""
        if task.status == "created" and task.has_open_question:
            self.happens(task, "is held")

    def _settle_links(self, question: Task) -> None:
        waiting = [link for link in question.linked if link.state == "waiting"]
        for link in waiting:
            link.state = "woken" if link.task.agent and link.task.status in GETS_ANSWERS else "skipped"
        for link in waiting:
            if link.task.agent and link.task.status in GETS_ANSWERS | FAILED:
                link.task.news.append(question)
        for link in waiting:
            if link.state == "woken":
                if link.task.status in MAY_BE_RESCHEDULED:
                    link.task.priority = min(link.task.priority, GATED)
                self.deliver_answer(link.task)

    def deliver_answer(self, task: Task) -> None:
        """Deliver an answer of people: wake a task that waits for nothing else; others get it in their next run."""
        if task.status == "awaiting_review" and not task.has_open_question:
            self.wake(task)
        else:
            self.has_reason(task)

    def has_reason(self, task: Task) -> None:
        """Add a reason to run, which ends no reason to wait."""
        if not task.later:
            task.due = True

    def withdraw(self, question: Task) -> None:
        self.happens(question, "is cancelled")
        self.ended(question)

    def release(self, task: Task) -> None:
        self._stop_work(task)
        while open_ones := [one for one in task.dependents(DEPENDENTS) if not one.ended]:
            for one in open_ones:
                self.happens(one, "is cancelled")
            for one in open_ones:
                self.ended(one)
            for one in open_ones:
                self._stop_work(one)

    def _stop_work(self, task: Task) -> None:
        if task.attempt is not None and task.attempt.state == "running":
            task.attempt.state = "cancelled"
        task.due = task.later = False
        if task.letter:
            task.letter.state = "closed"
        self._close_links(task)

    def _close_links(self, task: Task) -> None:
        """Move open questions about the task to its successor, and withdraw questions without tasks."""
        dropped = task.waiting_links
        successors = [child for child in task.children if child.link == "reassigned_from"]
        for successor in [successor for successor in successors if successor.agent]:
            self._notify_successor(task, successor)
        for link in dropped:
            link.state = "skipped"
        for question in [link.approval for link in dropped]:
            if question.parent is not task:
                self.link(question, successors, successors)
            if question.open and not any(link.state == "waiting" for link in question.linked):
                self.withdraw(question)

    def _notify_successor(self, task: Task, successor: Task) -> None:
        """Pass on the decisions about the task, because its successor begins again."""
        for link in [
            link for link in task.links if link.state == "woken" and link.approval.parent is not task
        ]:
            link_of_successor = Link(link.approval, successor, state="woken")
            successor.links.append(link_of_successor)
            link.approval.linked.append(link_of_successor)
            successor.news.append(link.approval)
            self.deliver_answer(successor)

    def revise(self, task: Task, *, approval_wanted: bool) -> Task:
        """Create the revision of a task, and move open questions to it."""
        revision = self.add(
            Task(
                agent=task.agent,
                parent=task,
                link="revision_of",
                approval_wanted=approval_wanted,
                rules=task.rules,
                most_attempts=task.most_attempts,
                round=task.round + 1,
                run=task.run,
                step=task.step,
                taken_over=task.taken_over,
            )
        )
        for link in task.waiting_links:
            link.state = "skipped"
            self.link(link.approval, [revision], [revision])
        return revision

    def ended(self, task: Task) -> None:
        if task.status not in SETTLED:
            return
        if task.link == "approval":
            self._settle_links(task)
        elif task.link == "escalation":
            if task.status == "done" and task.parent and task.parent.letter:
                task.parent.letter.state = "closed"
        else:
            self._answer(task)
        if task.run is not None:
            task.run.settled(self, task)

    def _answer(self, task: Task) -> None:
        """Wake the parent that waits for this task or for its origin."""
        origin = task.origin
        parent = origin.parent
        if parent is None or origin.link not in WAITS_FOR or parent.waits_for is not origin:
            return
        if task.status == "rejected" and task.successor:
            return
        if parent.status != WAITS_FOR[origin.link]:
            return
        if origin.link == "review":
            parent.waits_for = None
            self.deliver_answer(parent)
        else:
            self.wake(parent, progress=origin.link == "subtask" and task.status in ("done", "approved"))

    def wake(self, task: Task, *, progress: bool = False) -> None:
        task.waits_for = None
        if not progress and task.fruitless + 1 >= self.limits.wakes:
            self.happens(task, "is stopped")
            task.due = task.later = False
            task.letters.append(Letter())
            self.ended(task)
            return
        self.happens(task, "is woken")
        task.fruitless = 0 if progress else task.fruitless + 1
        if task.not_before:
            task.later = True
        else:
            self.has_reason(task)
        self.hold_if_questioned(task)
