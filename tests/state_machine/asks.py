"""The model's runs of agents: how they end, and the tools that they call."""

from __future__ import annotations

from collections.abc import Sequence

from tests.state_machine.ends import Ends
from tests.state_machine.life import FAILED, SUCCESSORS, Refused
from tests.state_machine.tasks import Attempt, Rules, Task


class Asks(Ends):
    """Agents claim work, complete it, fail, fall silent, or suspend it."""

    def claimed(self, task: Task) -> Attempt:
        self.happens(task, "is claimed")
        task.attempt = Attempt(task)
        task.runs += 1
        task.attempts += 1
        task.due = task.goes_past_pauses = False
        task.attempt.decisions, task.news = task.news, []
        self.attempts.append(task.attempt)
        return task.attempt

    def completes(self, attempt: Attempt, output: str) -> None:
        self.check_live(attempt)
        task = attempt.task
        attempt.state, attempt.output = "completed", output
        task.fruitless = 0
        if task.due:  # another wake came meanwhile, so it runs once more
            self.happens(task, "is requeued")
            task.attempts = task.stalls = 0
            self.hold_if_questioned(task)
        elif task.approval_wanted:
            self.happens(task, "has a draft")
            task.waits_for = self.add(
                Task(
                    parent=task,
                    link="gate",
                    gate=True,
                    rules=task.rules,
                    run=task.run,
                    step=task.step,
                    round=task.round,
                )
            )
        else:
            self.happens(task, "has a result")
            self.ended(task)

    def fails(self, attempt: Attempt, kind: str) -> None:
        """`again`: another attempt may help. `never`: none would. `limited`: a rate limit, which is not the agent's fault.
        `held`: the provider refuses all calls for a time."""
        self.check_live(attempt)
        task = attempt.task
        attempt.state, attempt.error = "failed", kind
        refused = kind in ("limited", "held")
        if refused or (kind == "again" and task.attempts < task.most_attempts):
            self._requeue(attempt)
            task.attempts -= refused
            task.due, task.later = False, True  # wakes that came meanwhile wait with it
            task.delay = "provider" if refused else "retry"
            if kind == "held" and task.agent:
                self.holds |= {(task.agent, band) for band in ("rest", *("urgent",) * task.is_urgent)}
            self.hold_if_questioned(task)
        else:
            self.fails_permanently(task)

    def spends(self, attempt: Attempt, *, within_budget: bool) -> bool:
        """Whether the run continues after it has reported what it costs. Work that exceeds a budget waits for money."""
        self.check_live(attempt)
        if within_budget:
            return True
        task = attempt.task
        attempt.state = "failed"
        self._requeue(attempt)
        task.attempts -= 1
        task.due, task.later, task.waits_for_money = False, True, True
        self.hold_if_questioned(task)
        return False

    def is_lost(self, attempt: Attempt) -> None:
        self.check_live(attempt)
        task = attempt.task
        attempt.state = "stalled"
        if task.stalls >= self.limits.stalls:
            self.fails_permanently(task)
            return
        self._requeue(attempt)
        task.attempts -= 1
        task.stalls += 1
        task.due = True
        self.hold_if_questioned(task)

    def _requeue(self, attempt: Attempt) -> None:
        """Requeue the task; the next run gets the decisions of this one again."""
        self.happens(attempt.task, "is requeued")
        attempt.task.news = [*attempt.decisions, *attempt.task.news]

    def check_live(self, attempt: Attempt) -> None:
        if not attempt.live:
            raise Refused("the run is over")

    def reports_blocker(self, attempt: Attempt) -> Task:
        self._may_call(attempt)
        return self._suspend(
            attempt,
            "is blocked",
            "report_blocker",
            Task(parent=attempt.task, link="resolution", run=attempt.task.run),
        )

    def asks_for_review(self, attempt: Attempt) -> Task:
        self._may_call(attempt)
        review = Task(parent=attempt.task, link="review", run=attempt.task.run)
        return self._suspend(attempt, "waits for an answer", "request_human_review", review)

    def creates_subtask(self, attempt: Attempt, *, agent: str | None, blocking: bool) -> Task:
        self._may_call(attempt)
        self.limits.refuse_subtask_of(attempt.task)
        attempt.calls += 1
        part = Task(agent=agent, parent=attempt.task, link="subtask", blocking=blocking, run=attempt.task.run)
        if not blocking:
            return self.add(part)
        attempt.calls -= 1
        return self._suspend(attempt, "waits for a subtask", "create_subtask", part)

    def creates_approval(self, attempt: Attempt, about: Sequence[Task]) -> Task | None:
        """Request an approval over several tasks, perhaps including its own. Only the task's own work is linked."""
        self._may_call(attempt)
        task = attempt.task
        own = [other for other in about if self._may_ask_about(task, other)]
        if not own:
            attempt.calls += 1
            return None
        question = Task(parent=task, link="approval", gate=True, run=task.run)
        self.add(question)
        self.link(question, own, own)
        if task not in own:
            attempt.calls += 1
            return question
        return self._suspend(attempt, "waits for an answer", "create_approval", question, is_new=False)

    def _may_ask_about(self, task: Task, other: Task) -> bool:
        if other.agent is None or not other.live:
            return False
        above: Task | None = other
        while above is not None and above not in task.line:
            above = above.parent if above.link in SUCCESSORS | {"subtask"} else None
        if above is not None:
            return True
        return (
            task.run is not None and other.run is task.run and other.status in ("created", "awaiting_review")
        )

    def reassigns(self, attempt: Attempt, agent: str | None) -> Task:
        self._may_call(attempt)
        rules = attempt.task.rules or Rules()
        if agent is None and attempt.task.approval_wanted and (rules.voted or rules.asked_by):
            raise Refused("others must approve it")
        self.limits.refuse_reassignment_of(attempt.task, agent)
        return self.replace(attempt.task, agent, attempt)

    def replace(self, task: Task, agent: str | None, attempt: Attempt | None) -> Task:
        """Create the successor of a reassigned task."""
        self.check(task, "is reassigned")
        if task.run is not None and task.step is not None and task.run.status == "cancelled":
            raise Refused("its pipeline was cancelled")
        taken_over = next((member.agent for member in task.line if member.agent), None)
        successor = Task(
            agent=agent,
            parent=task,
            link="reassigned_from",
            gate=agent is None and (bool(taken_over) or task.gate),
            approval_wanted=task.approval_wanted,
            blocking=task.blocking,
            not_before=task.not_before,
            most_attempts=task.most_attempts,
            round=task.round,
            run=task.run,
            step=task.step,
            taken_over=taken_over,
            rules=next((member.rules for member in task.line if bool(member.agent) == bool(agent)), None),
        )
        self.add(successor)
        before = task.status
        if attempt is not None:
            self._end_with(attempt, "reassign_task")
        self.happens(task, "is reassigned")
        if task.run is not None:
            task.run.step_reassigned(self, task, successor, had_failed=before in FAILED)
        if task.key and not self.live_with(task.key):
            successor.key = task.key
        self.release(task)
        return successor

    def _may_call(self, attempt: Attempt) -> None:
        self.check_live(attempt)
        if attempt.calls >= self.limits.calls:
            raise Refused("too many calls")

    def _suspend(
        self, attempt: Attempt, what: str, tool: str, question: Task, *, is_new: bool = True
    ) -> Task:
        self._end_with(attempt, tool)
        self.happens(attempt.task, what)
        attempt.task.waits_for = self.add(question) if is_new else question
        return question

    def _end_with(self, attempt: Attempt, tool: str) -> None:
        attempt.calls += 1
        attempt.state, attempt.tool = "completed", tool
        attempt.task.attempts = attempt.task.stalls = 0  # because the run succeeded
