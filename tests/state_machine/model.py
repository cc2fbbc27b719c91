"""The engine as the documents tell it, one thing after the other and in memory: what the real one must agree with after every step.

Each method is something that happens. It raises `Refused`, having changed nothing, when that cannot happen now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.state_machine.flow import Flow
from tests.state_machine.life import DEPENDENTS, FAILED, LIFE, SETTLED, SUCCESSORS, WAITS_FOR, Refused
from tests.state_machine.limits import Limits
from tests.state_machine.tasks import Attempt, Letter, Link, Rules, Task


class Model:
    """All tasks of a tenant, oldest first, and the pipelines' runs."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tasks: list[Task] = []
        self.attempts: list[Attempt] = []
        self.flows: list[Flow] = []

    # What comes into being.

    def add(self, task: Task) -> Task:
        self.tasks.append(task)
        return task

    def submit(self, task: Task) -> Task:
        """The task, or the live one with the same key."""
        same = self._live_with(task.key)
        return same or self.add(task)

    def _live_with(self, key: str | None) -> Task | None:
        return next((task for task in self.tasks if key and task.key == key and task.live), None)

    def _happens(self, task: Task, what: str) -> None:
        self._check(task, what)
        task.status = LIFE[task.status][what]

    def _check(self, task: Task, what: str) -> None:
        if what not in LIFE[task.status]:
            raise Refused(f"{task.status} {what}")

    # An agent's run.

    def claimed(self, task: Task) -> Attempt:
        self._happens(task, "is claimed")
        task.attempt = Attempt(task)
        task.attempts += 1
        task.due = False
        self.attempts.append(task.attempt)
        return task.attempt

    def completes(self, attempt: Attempt, output: str) -> None:
        self._check_live(attempt)
        task = attempt.task
        attempt.state, attempt.output = "completed", output
        task.fruitless = 0
        if task.later:  # another reason came meanwhile: it runs once more
            self._happens(task, "is handed back")
            task.attempts = 0
        elif task.approval_wanted:
            self._happens(task, "has a draft")
            task.waits_for = self.add(
                Task(
                    parent=task, link="gate", gate=True, rules=task.rules, run=task.run, step=task.step, round=task.round
                )
            )
        else:
            self._happens(task, "has a result")
            self._ended(task)

    def fails(self, attempt: Attempt, kind: str) -> None:
        """`again`: another attempt may help. `never`: none would. `limited`: it was not the agent's fault."""
        self._check_live(attempt)
        task = attempt.task
        attempt.state, attempt.error = "failed", kind
        if kind == "limited" or (kind == "again" and task.attempts < task.most_attempts):
            self._happens(task, "is handed back")
            task.attempts -= kind == "limited"
            task.later = True
        else:
            self._fails_for_good(task)

    def is_lost(self, attempt: Attempt) -> None:
        self._check_live(attempt)
        task = attempt.task
        attempt.state = "stalled"
        if task.stalls >= self.limits.stalls:
            self._fails_for_good(task)
            return
        self._happens(task, "is handed back")
        task.attempts -= 1
        task.stalls += 1
        task.due = True

    def _fails_for_good(self, task: Task) -> None:
        self._happens(task, "fails for good")
        task.due = task.later = False
        task.letters.append(Letter())
        self._ended(task)

    def _check_live(self, attempt: Attempt) -> None:
        if not attempt.live:
            raise Refused("the run is over")

    # What an agent asks for.

    def reports_blocker(self, attempt: Attempt) -> Task:
        self._may_call(attempt)
        return self._put_aside(
            attempt, "is blocked", "report_blocker", Task(parent=attempt.task, link="resolution", run=attempt.task.run)
        )

    def asks_for_review(self, attempt: Attempt, rules: Rules | None) -> Task:
        self._may_call(attempt)
        review = Task(parent=attempt.task, link="review", rules=rules, run=attempt.task.run)
        return self._put_aside(attempt, "waits for an answer", "request_human_review", review)

    def creates_part(self, attempt: Attempt, *, agent: str | None, blocking: bool) -> Task:
        self._may_call(attempt)
        self.limits.refuse_part_of(attempt.task)
        attempt.calls += 1
        part = Task(agent=agent, parent=attempt.task, link="subtask", blocking=blocking, run=attempt.task.run)
        if not blocking:
            return self.add(part)
        attempt.calls -= 1
        return self._put_aside(attempt, "waits for a part", "create_subtask", part)

    def asks_over(self, attempt: Attempt, about: Sequence[Task], rules: Rules | None) -> Task:
        """An approval over several tasks, perhaps its own among them."""
        self._may_call(attempt)
        task = attempt.task
        question = Task(parent=task, link="approval", gate=True, rules=rules, run=task.run)
        self.add(question)
        self._link(question, about, [other for other in about if self._may_hold(task, other)])
        if task not in about:
            attempt.calls += 1
            return question
        return self._put_aside(attempt, "waits for an answer", "create_approval", question, is_new=False)

    def _may_hold(self, task: Task, other: Task) -> bool:
        same_run = task.run is not None and other.run is task.run
        return same_run or (other.link == "subtask" and other.parent is task)

    def hands_on(self, attempt: Attempt, agent: str | None) -> Task:
        self._may_call(attempt)
        self.limits.refuse_another_hand(attempt.task, agent)
        return self._hand_on(attempt.task, agent, attempt)

    def _may_call(self, attempt: Attempt) -> None:
        self._check_live(attempt)
        if attempt.calls >= self.limits.calls:
            raise Refused("too many calls")

    def _put_aside(self, attempt: Attempt, what: str, tool: str, asked: Task, *, is_new: bool = True) -> Task:
        self._end_with(attempt, tool)
        self._happens(attempt.task, what)
        attempt.task.attempts = 0
        attempt.task.waits_for = self.add(asked) if is_new else asked
        return asked

    def _end_with(self, attempt: Attempt, tool: str) -> None:
        attempt.calls += 1
        attempt.state, attempt.tool = "completed", tool

    # Approvals over several tasks.

    def people_ask(self, about: Sequence[Task], rules: Rules | None) -> Task:
        question = self.add(Task(link="approval", gate=True, rules=rules))
        self._link(question, about, about)
        return question

    def _link(self, question: Task, about: Sequence[Task], may_hold: Sequence[Task]) -> None:
        for task in about:
            link = Link(question, task)
            task.links.append(link)
            question.linked.append(link)
            if task in may_hold and task.status == "created" and task.agent:
                self._happens(task, "is held")

    def _settle_links(self, question: Task) -> None:
        waiting = [link for link in question.linked if link.state == "waiting"]
        heard = [
            link
            for link in waiting
            if link.task.status == "awaiting_review"
            and (question.parent is link.task or not self._asks_itself(link.task, question))
        ]
        for link in waiting:
            link.state = "woken" if link in heard else "skipped"
        for link in heard:
            self._wake(link.task)

    def _asks_itself(self, task: Task, question: Task) -> bool:
        """Whether the task waits for something else that its own agent has asked for."""
        return any(
            child.open and child is not question
            and (child.link == "review" or (child.link == "approval" and any(link.task is task and link.state == "waiting" for link in child.linked)))
            for child in task.children
        )  # fmt: skip

    def withdraw(self, question: Task) -> None:
        self._happens(question, "is cancelled")
        self._ended(question)

    # What people do.

    def takes_up(self, task: Task) -> None:
        self._check_person(task)
        self._happens(task, "is taken up")

    def person_completes(self, task: Task) -> None:
        self._check_person(task)
        if task.decision:
            raise Refused("it asks for a yes or a no")
        self._happens(task, "is completed")
        self._ended(task)

    def _check_person(self, task: Task) -> None:
        if task.agent is not None:
            raise Refused("an agent does it")

    def resolves(self, task: Task) -> None:
        """`task` is the resolution, what stands in for it, or what is blocked."""
        if task.origin.link == "resolution":
            resolution = task.newest
        else:
            resolutions = [child for child in task.children if child.link == "resolution"]
            if not resolutions:
                raise Refused("nothing blocks it")
            resolution = resolutions[-1].newest
        self._happens(resolution, "is completed")
        self._ended(resolution)

    def decides(self, task: Task, decision: str, voter: str = "", *, in_time: bool = True) -> None:
        """`task` is what people are asked, or what waits behind a gate."""
        if task.agent is None and not task.gate and task.link != "review":
            raise Refused("not a decision")
        gates = [child for child in task.children if child.link == "gate"]
        behind = task if task.agent else task.parent if task.link == "gate" else None
        item = (gates[-1] if gates else None) if task.agent else task
        asked = item or task
        rules = asked.rules or Rules()
        if in_time and rules.asked_by == voter:
            raise Refused("who asks does not decide")
        if in_time and rules.voted and item is not None and (item.open or asked.status == "awaiting_approval"):
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
            self._happens(item, "is taken up")
        return rules.outcome(item.votes)

    def _close(self, behind: Task | None, item: Task | None, decision: str) -> None:
        what = "is agreed to" if decision == "approve" else "is refused"
        if behind is not None and behind.status != "awaiting_approval":
            raise Refused("nothing waits for a decision")
        if item is not None:
            self._check(item, what)
        if behind is not None:
            if decision == "reject":
                self._make_anew(behind)
            self._happens(behind, what)
            self._ended(behind)
        if item is not None:
            self._happens(item, what)
            self._ended(item)

    def _make_anew(self, task: Task) -> None:
        if task.round >= self.limits.rounds:
            self.add(Task(parent=task, link="escalation"))
        else:
            self.revise(task, approval_wanted=task.approval_wanted)

    def revise(self, task: Task, *, approval_wanted: bool) -> Task:
        return self.add(
            Task(
                agent=task.agent, gate=task.gate, parent=task, link="revision_of", approval_wanted=approval_wanted, rules=task.rules,
                most_attempts=task.most_attempts, round=task.round + 1, run=task.run, step=task.step, taken_over=task.taken_over,
            )
        )  # fmt: skip

    # What operators do.

    def cancel(self, task: Task) -> None:
        if task.link == "gate" and task.open:
            raise Refused("what waits behind it could never be decided")
        self._happens(task, "is cancelled")
        self._ended(task)
        self._let_go(task)

    def _let_go(self, task: Task) -> None:
        self._stop_work(task)
        while open_ones := [one for one in task.dependents(DEPENDENTS) if not one.ended]:
            for one in open_ones:
                self._happens(one, "is cancelled")
            for one in open_ones:
                self._ended(one)
            for one in open_ones:
                self._stop_work(one)

    def _stop_work(self, task: Task) -> None:
        if task.attempt is not None and task.attempt.state == "running":
            task.attempt.state = "cancelled"
        task.due = task.later = False
        if task.letter:
            task.letter.state = "closed"
        self._drop_links(task)

    def _drop_links(self, task: Task) -> None:
        """What others ask about the work is asked about the heir's; nobody is asked about nothing."""
        dropped = task.waiting_links
        heirs = [child for child in task.children if child.link == "reassigned_from"]
        for link in dropped:
            link.state = "skipped"
        for question in [link.approval for link in dropped]:
            if question.parent is not task:
                self._link(question, heirs, heirs)
            if question.open and not any(link.state == "waiting" for link in question.linked):
                self.withdraw(question)

    def reassign(self, task: Task, agent: str | None) -> Task:
        if task.link in ("gate", "review", "approval", "escalation"):
            raise Refused("whoever is asked answers it")
        taken_over = task.link == "reassigned_from" and task.taken_over
        if agent and ((task.gate and not taken_over) or task.origin.link == "resolution"):
            raise Refused("only people do this")
        return self._hand_on(task, agent, None)

    def _hand_on(self, task: Task, agent: str | None, attempt: Attempt | None) -> Task:
        self._check(task, "is handed on")
        if task.run is not None and task.step is not None and task.run.status == "cancelled":
            raise Refused("its pipeline was cancelled")
        taken_over = next((member.agent for member in task.line if member.agent), None)
        heir = Task(
            agent=agent, parent=task, link="reassigned_from", gate=agent is None and (bool(taken_over) or task.gate),
            approval_wanted=task.approval_wanted, blocking=task.blocking, most_attempts=task.most_attempts, round=task.round, run=task.run,
            step=task.step, taken_over=taken_over,
            rules=next((member.rules for member in task.line if bool(member.agent) == bool(agent)), None),
        )  # fmt: skip
        self.add(heir)
        before = task.status
        if attempt is not None:
            self._end_with(attempt, "reassign_task")
        self._happens(task, "is handed on")
        if task.run is not None:
            task.run.handed_on(self, task, heir, had_failed=before in FAILED)
        if task.key and not self._live_with(task.key):
            heir.key = task.key
        self._let_go(task)
        return heir

    def retry(self, task: Task) -> None:
        self._check(task, "is tried again")
        if self._live_with(task.key):
            raise Refused("the same work is under way")
        self._try_again(task)

    def _try_again(self, task: Task) -> None:
        self._happens(task, "is tried again")
        task.attempts = task.stalls = task.fruitless = 0
        task.due = True
        if letter := task.letter:
            letter.state = "replayed"
            if letter.escalation is not None and letter.escalation.open:
                self._happens(letter.escalation, "is cancelled")
        if task.run is not None:
            task.run.reopen(task)

    def replay(self) -> None:
        """Everything that has failed and that nobody has dealt with."""
        for task in [task for task in self.tasks if task.letter and task.status in FAILED]:
            if not self._live_with(task.key):
                self._try_again(task)

    def dismiss(self) -> None:
        for task in [task for task in self.tasks if task.letter and task.status in FAILED]:
            self._happens(task, "is cancelled")
            self._ended(task)
            self._let_go(task)

    # What happens by itself.

    def tell_of_letters(self) -> None:
        for task, letter in [(task, letter) for task in self.tasks for letter in task.letters if not letter.told]:
            letter.told = True
            if letter.state == "open":
                if task.status == "failed":
                    self._happens(task, "is told of")
                letter.escalation = self.add(Task(parent=task, link="escalation", run=task.run))

    def time_passes(self) -> None:
        """Every question that has a time to be answered by is due, the oldest first."""
        for task in [task for task in self.tasks if task.deadline_ahead]:
            task.deadline_ahead = False
            outcome = task.rules.on_timeout if task.rules else None
            if task.open and outcome in ("approve", "reject") and (task.gate or task.link == "review"):
                self.decides(task, outcome, in_time=False)

    def delays_end(self) -> None:
        for task in self.tasks:
            task.due, task.later = task.due or task.later, False

    # What follows from an end.

    def _ended(self, task: Task) -> None:
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
        """Whoever waits for this, or for what it stands in for, wakes."""
        origin = task.origin
        parent = origin.parent
        if parent is None or origin.link not in WAITS_FOR or parent.waits_for is not origin:
            return
        if task.status == "rejected" and task.successor:
            return
        if parent.status == WAITS_FOR[origin.link]:
            self._wake(parent, progress=origin.link == "subtask" and task.status in ("done", "approved"))

    def _wake(self, task: Task, *, progress: bool = False) -> None:
        task.waits_for = None
        if not progress and task.fruitless + 1 >= self.limits.wakes:
            self._happens(task, "is stopped")
            task.due = task.later = False
            task.letters.append(Letter())
            self._ended(task)
            return
        self._happens(task, "is woken")
        task.fruitless = 0 if progress else task.fruitless + 1
        task.due = True


__all__ = ("SUCCESSORS", "Model")
