"""The engine as the documents describe it, sequential and in memory. The real engine must agree with it after every step.

Each method is one event. It raises `Refused` without changing anything if the event is not possible now.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.state_machine.asks import Asks
from tests.state_machine.life import FAILED, LIVE, MAY_BE_RESCHEDULED, Refused
from tests.state_machine.tasks import URGENT, Rules, Task


class Model(Asks):
    """Adds what people and operators do, and what happens by time."""

    def submit(self, task: Task) -> Task:
        """Add the task, or return the live one with the same key."""
        same = self.live_with(task.key)
        return same or self.add(task)

    def people_ask(self, about: Sequence[Task], rules: Rules | None) -> Task:
        question = self.add(Task(link="approval", gate=True, rules=rules))
        self.link(question, about, about)
        return question

    def person_claims(self, task: Task) -> None:
        self._check_person(task)
        self.happens(task, "is claimed by a person")

    def person_completes(self, task: Task) -> None:
        self._check_person(task)
        if task.decision:
            raise Refused("it asks for a yes or a no")
        self.happens(task, "is completed")
        self.ended(task)

    def _check_person(self, task: Task) -> None:
        if task.agent is not None:
            raise Refused("an agent does it")

    def resolves(self, task: Task) -> None:
        """`task` is the resolution, its successor, or the blocked task."""
        if task.origin.link == "resolution":
            resolution = task.newest
        else:
            resolutions = [child for child in task.children if child.link == "resolution"]
            if not resolutions:
                raise Refused("nothing blocks it")
            resolution = resolutions[-1].newest
        self.happens(resolution, "is completed")
        self.ended(resolution)

    def decides(self, task: Task, decision: str, voter: str = "", *, in_time: bool = True) -> None:
        """`task` is the question, or the task that waits behind a gate."""
        if task.agent is None and not task.gate and task.link != "review":
            raise Refused("not a decision")
        gates = [child for child in task.children if child.link == "gate"]
        behind = task if task.agent else task.parent if task.link == "gate" else None
        item = (gates[-1] if gates else None) if task.agent else task
        question = item or task
        rules = question.rules or Rules()
        if in_time and rules.asked_by == voter:
            raise Refused("who asks does not decide")
        if (
            in_time
            and rules.voted
            and item is not None
            and (item.open or question.status == "awaiting_approval")
        ):
            outcome = self._vote(item, rules, decision, voter)
            if outcome is None:
                return
            decision = outcome
        self._close(behind, item, decision)

    def _vote(self, item: Task, rules: Rules, decision: str, voter: str) -> str | None:
        if voter in item.votes:
            raise Refused("nobody votes twice")
        item.votes[voter] = decision
        if item.status == "created":
            self.happens(item, "is claimed by a person")
        return rules.outcome(item.votes)

    def _close(self, behind: Task | None, item: Task | None, decision: str) -> None:
        what = "is approved" if decision == "approve" else "is rejected"
        if behind is not None and behind.status != "awaiting_approval":
            raise Refused("nothing waits for a decision")
        if item is not None:
            self.check(item, what)
        if behind is not None:
            revision = self._redo(behind) if decision == "reject" else None
            self.happens(behind, what)
            if revision is not None:
                revision.key = behind.key
            self.ended(behind)
        if item is not None:
            self.happens(item, what)
            self.ended(item)

    def _redo(self, task: Task) -> Task | None:
        if task.round >= self.limits.rounds:
            self.add(Task(parent=task, link="escalation"))
            return None
        return self.revise(task, approval_wanted=task.approval_wanted)

    def cancel(self, task: Task) -> None:
        if task.link == "gate" and task.open:
            raise Refused("what waits behind it could never be decided")
        self.happens(task, "is cancelled")
        self.ended(task)
        self.release(task)

    def expire(self, task: Task) -> None:
        """Cancel a task that has not started or could not continue after its answer. Runs and gates do not expire."""
        if task.status in ("created", "awaiting_review", "awaiting_subtask", "blocked"):
            self.cancel(task)

    def reassign(self, task: Task, agent: str | None) -> Task:
        if task.link in ("gate", "review", "approval", "escalation"):
            raise Refused("the people who are asked must answer it")
        taken_over = task.link == "reassigned_from" and task.taken_over
        if agent and ((task.gate and not taken_over) or task.origin.link == "resolution"):
            raise Refused("only people do this")
        return self.replace(task, agent, None)

    def retry(self, task: Task) -> None:
        self.check(task, "is retried")
        if self.live_with(task.key):
            raise Refused("the same work is under way")
        self._try_again(task)

    def _try_again(self, task: Task) -> None:
        self.happens(task, "is retried")
        task.attempts = task.stalls = task.fruitless = 0
        task.due, task.later = not task.not_before, task.not_before
        self.hold_if_questioned(task)
        if letter := task.letter:
            letter.state = "replayed"
            if letter.escalation is not None and letter.escalation.open:
                self.happens(letter.escalation, "is cancelled")
        if task.run is not None:
            task.run.reopen(task)

    def replay(self) -> None:
        """Retry everything with an open dead letter."""
        for task in [task for task in self.tasks if task.letter and task.status in FAILED]:
            if not self.live_with(task.key):
                self._try_again(task)

    def dismiss(self) -> None:
        for task in [task for task in self.tasks if task.letter and task.status in FAILED]:
            self.happens(task, "is cancelled")
            self.ended(task)
            self.release(task)

    def tell_of_letters(self) -> None:
        unreported = [(task, letter) for task in self.tasks for letter in task.letters if not letter.reported]
        for task, letter in unreported:
            letter.reported = True
            if letter.state == "open":
                if task.status == "failed":
                    self.happens(task, "is reported")
                letter.escalation = self.add(Task(parent=task, link="escalation", run=task.run))

    def time_passes(self) -> None:
        """Let every deadline pass, the oldest first."""
        ahead = [task for task in self.tasks if task.deadline_ahead]
        for task in sorted(ahead, key=lambda task: task.due_rank):
            task.deadline_ahead = False
            outcome = task.rules.on_timeout if task.rules else None
            if task.agent is not None:
                if task.status in LIVE | FAILED:
                    task.priority = URGENT
            elif task.open and outcome in ("approve", "reject") and (task.gate or task.link == "review"):
                self.decides(task, outcome, in_time=False)
            elif task.open:
                task.priority = URGENT

    # Rescheduling.

    def reschedule(
        self,
        task: Task,
        *,
        priority: int | None = None,
        not_before: bool | None = None,
        due_at: bool | None = None,
    ) -> None:
        """None leaves a value unchanged. Other reasons to wait are not affected."""
        if task.status not in MAY_BE_RESCHEDULED and not (task.agent is None and task.open):
            raise Refused("it runs or is over")
        if not_before and task.agent is None:
            raise Refused("people begin when they want to")
        if priority is not None:
            task.priority = priority
        if due_at is not None:
            task.has_due_time = task.deadline_ahead = due_at
            self.due_times_set += 1
            task.due_rank = self.due_times_set
        if not_before is not None:
            task.not_before = not_before
            if (task.due or task.later) and not task.waits_for_money:
                delayed = not_before or task.delay is not None
                task.due, task.later = not delayed, delayed

    def run_now(self, task: Task) -> None:
        """Ignore its date, the delay of a retry and the pauses of its tenant, and nothing else."""
        if task.agent is None or task.status != "created":
            raise Refused("nothing waits for its turn")
        task.goes_past_pauses, task.not_before = True, False
        if task.delay == "retry":
            task.delay = None
        if not task.waits_for_money:
            task.due, task.later = task.delay is None, task.delay is not None

    def delays_end(self) -> None:
        self.holds.clear()
        for task in self.tasks:
            task.not_before, task.delay = False, None
        for task in [task for task in self.tasks if not task.waits_for_money]:
            task.due, task.later = task.due or task.later, False

    def finds_no_money(self, task: Task) -> None:
        """Defer a task that was about to start, because its budget is used up."""
        task.due, task.later, task.waits_for_money = False, True, True

    def money_comes(self) -> None:
        self.has_money = True
        for task in [task for task in self.tasks if task.waits_for_money]:
            task.waits_for_money = False
            if task.due or task.later:
                task.due, task.later = not task.not_before, task.not_before
