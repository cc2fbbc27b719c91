"""Rules of the machine: what agents do, and what happens to their messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from activities.execution.reports import Receipt
from tests.state_machine.drawn import (
    ends_of_calls,
    fates,
    indexes,
    priorities,
    roles,
    rules_of_decisions,
    seldom,
)
from tests.state_machine.flow import PIPELINES, Flow
from tests.state_machine.machine import Machine, pick
from tests.state_machine.tasks import NORMAL, Attempt, Rules, Task
from tests.state_machine.world import BUDGETED, ROLES, SCHEDULE, stored_rules

TOOLS = (
    "blocker",
    "review",
    "subtask",
    "parallel subtask",
    "approval",
    "approval over others",
    "reassignment",
)
Call = tuple[Attempt, str, dict[str, Any], dict[str, Any]]


class Agents(Machine):
    """Work is submitted; agents accept it, do it, call tools, fail, fall silent and report too late."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[Call] = []

    # Work comes in.

    @initialize(
        role=st.sampled_from(ROLES), gated=st.booleans(), rules=rules_of_decisions, count=st.integers(0, 3)
    )
    def there_is_work(self, role: str, gated: bool, rules: Rules | None, count: int) -> None:
        for _ in range(count):
            self.work_comes_in(role, gated, rules, 2, None, False, NORMAL, False, "kept")

    @rule(
        role=st.sampled_from(ROLES),
        gated=st.booleans(),
        rules=rules_of_decisions,
        attempts=st.integers(1, 2),
        key=st.sampled_from((None, None, "one")),
        later=seldom,
        priority=priorities,
        scheduled=seldom,
        fate=fates,
    )
    def work_comes_in(
        self,
        role: str,
        gated: bool,
        rules: Rules | None,
        attempts: int,
        key: str | None,
        later: bool,
        priority: int | None,
        scheduled: bool,
        fate: str,
    ) -> None:
        task = partial(
            Task,
            agent=role,
            approval_wanted=gated,
            rules=rules,
            most_attempts=attempts,
            key=key,
            not_before=later,
            priority=priority or NORMAL,
            scheduled=scheduled,
        )
        fields = {
            "agent_role": role,
            "requires_approval": gated,
            "decision_rules": stored_rules(rules),
            "max_attempts": attempts,
            "dedup_key": key,
            "priority": priority or NORMAL,
            "schedule_id": SCHEDULE if scheduled else None,
            "not_before": datetime.now(UTC) + timedelta(days=1) if later else None,
        }
        self.happens(lambda: self.model.submit(task()), lambda: self.world.submit(**fields), fate)

    @rule(key=st.sampled_from(sorted(PIPELINES)))
    def a_pipeline_starts(self, key: str) -> None:
        run_id = self.world.start(key)
        Flow.begin(self.model, key).id = run_id

    # A worker gets a message.

    @precondition(lambda self: self.ready())
    @rule(index=indexes, count=st.integers(1, 3))
    def agents_accept(self, index: int, count: int) -> None:
        for _ in range(count):
            self._arrives(index, lambda attempt: None, "accepts")

    @precondition(lambda self: self.ready())
    @rule(
        index=indexes, end=st.sampled_from(("result", "result", "again", "never", "limited", "held", "dies"))
    )
    def an_agent_answers_at_once(self, index: int, end: str) -> None:
        self._arrives(index, lambda attempt: None, end)

    @precondition(lambda self: self.ready())
    @rule(index=indexes, tool=st.sampled_from(TOOLS), end=ends_of_calls, answered=st.booleans())
    def an_agent_asks_during_its_call(self, index: int, tool: str, end: str, answered: bool) -> None:
        self._arrives(index, lambda attempt: self._asks(attempt, tool, answered), end)

    @precondition(lambda self: self.ready())
    @rule(index=indexes, what=st.sampled_from(("cancel", "reassign", "lose")), end=ends_of_calls)
    def others_act_during_a_call(self, index: int, what: str, end: str) -> None:
        self._arrives(index, lambda attempt: self._is_disturbed(attempt, what), end)

    def ready(self, *roles: str) -> bool:
        """Whether work of one of these roles, or of any if none is named, may have a message."""
        ready = [task for task in self.model.tasks if task.status == "created" and task.due]
        return any(not roles or task.agent in roles for task in ready)

    def _arrives(self, index: int, during: Callable[[Attempt], None], end: str, *roles: str) -> None:
        message = self.next_message(index, *roles)
        if message is not None:
            self.deliver(message, during, end)

    def _asks(self, attempt: Attempt, tool: str, answered: bool) -> None:
        self.call(attempt, tool, 0, "kept")
        self.engine_and_model_agree()
        if answered and attempt.task.waits_for is not None:
            self.answer(attempt.task.waits_for)

    def _is_disturbed(self, attempt: Attempt, what: str) -> None:
        if what == "cancel":
            self.cancel(attempt.task)
        elif what == "reassign":
            self.reassign(attempt.task, None)
        else:
            self.lose(attempt)

    # An agent that has accepted reports.

    @precondition(lambda self: self.accepted())
    @rule(
        index=indexes,
        end=st.sampled_from(("result", "result", "again", "never", "limited", "held")),
        fate=fates,
    )
    def an_agent_reports(self, index: int, end: str, fate: str) -> None:
        if attempt := pick(self.accepted(), index):
            self._report(attempt, end, fate)

    def _report(self, attempt: Attempt, end: str, fate: str) -> None:
        model, world = self.model, self.world
        if end in ("result", "same result"):
            output = attempt.output or "nothing" if end == "same result" else self.text("output")
            really = partial(world.complete, attempt.token, output)
            self.happens(lambda: _receipt(attempt, output, model.completes), really, fate)
        else:
            really = partial(world.fail, attempt.token, end)
            self.happens(lambda: _receipt(attempt, end, model.fails), really, fate)

    # Runs cost money.

    @precondition(lambda self: self.accepted())
    @rule(index=indexes, there_is_money=st.booleans(), fate=fates)
    def an_agent_reports_what_it_costs(self, index: int, there_is_money: bool, fate: str) -> None:
        if attempt := pick(self.accepted(), index):
            self._spends(attempt, there_is_money, fate)

    @precondition(lambda self: self.ready(*BUDGETED))
    @rule(index=indexes, end=ends_of_calls, accepts=st.booleans(), fate=fates)
    def a_run_costs_more_than_there_is(self, index: int, end: str, accepts: bool, fate: str) -> None:
        self.money_comes_or_is_gone(True)
        began = len(self.model.attempts)
        if accepts:
            self._arrives(index, lambda attempt: None, "accepts", *BUDGETED)
            for attempt in self.model.attempts[began:]:
                self._spends(attempt, False, fate)
        else:
            self._arrives(index, lambda attempt: self._spends(attempt, False), end, *BUDGETED)

    def _spends(self, attempt: Attempt, there_is_money: bool, fate: str = "kept") -> None:
        self.money_comes_or_is_gone(there_is_money)
        reasons: list[str | None] = []
        continues = self.happens(
            partial(self.model.spends, attempt, within_budget=self.has_money_for(attempt.task)),
            lambda: reasons.append(self.world.spend(attempt.token)),
            fate,
        )
        if fate != "crash":
            assert [reason is None for reason in reasons] == [continues]

    # An agent that has accepted asks for something.

    @precondition(lambda self: self.accepted())
    @rule(
        index=indexes,
        tool=st.sampled_from(TOOLS),
        other=indexes,
        role=roles,
        fate=fates,
    )
    def an_agent_asks(self, index: int, tool: str, other: int, role: str | None, fate: str) -> None:
        if attempt := pick(self.accepted(), index):
            self.call(attempt, tool, other, fate, role)

    # What comes again or too late.

    @precondition(lambda self: self.over())
    @rule(
        index=indexes,
        what=st.sampled_from(("message", "call", "report", "same report", "tool")),
        tool=st.sampled_from(TOOLS),
    )
    def something_comes_again_or_too_late(self, index: int, what: str, tool: str) -> None:
        attempt = self.over()[index % len(self.over())]
        if what == "message":
            self.deliver(
                self.world.delivered[index % len(self.world.delivered)], lambda attempt: None, "result"
            )
        elif what == "call" and self.calls:
            self._repeat(self.calls[index % len(self.calls)])
        elif what == "tool":
            self.call(attempt, tool, index, "kept")
        else:
            self._report(
                attempt,
                ("again", "never", "result")[index % 3] if what == "report" else "same result",
                "kept",
            )

    def _repeat(self, call: Call) -> None:
        attempt, tool, arguments, body = call
        answer = self.world.call(attempt.token, tool, arguments)
        assert (answer.repeated, answer.body) == (True, body)

    def call(
        self,
        attempt: Attempt,
        tool: str,
        other: int,
        fate: str,
        role: str | None = "dev",
    ) -> None:
        name, arguments, modelled = self._tool(attempt, tool, other, role)
        answers: list[Any] = []
        self.happens(modelled, lambda: answers.append(self.world.call(attempt.token, name, arguments)), fate)
        if answers and fate != "crash":
            self.calls.append((attempt, name, arguments, answers[0].body))

    def _tool(
        self, attempt: Attempt, tool: str, other: int, role: str | None
    ) -> tuple[str, dict[str, Any], Callable[[], Any]]:
        """Return the name and the arguments of the tool, and the step of the model."""
        text, model = self.text(tool), self.model
        whom = {"agent_role": role} if role else {"human_role": "editor"}
        if tool == "blocker":
            arguments: dict[str, Any] = {"type": "api_outage", "message": text}
            return "report_blocker", arguments, partial(model.reports_blocker, attempt)
        if tool == "review":
            arguments = {"question": text}
            return "request_human_review", arguments, partial(model.asks_for_review, attempt)
        if tool in ("subtask", "parallel subtask"):
            blocking = tool == "subtask"
            arguments = {"name": text, "description": "", "blocking": blocking, **whom}
            return (
                "create_subtask",
                arguments,
                partial(model.creates_subtask, attempt, agent=role, blocking=blocking),
            )
        if tool == "reassignment":
            return "reassign_task", {"reason": text, **whom}, partial(model.reassigns, attempt, role)
        about = [attempt.task] if tool == "approval" else self.several(other)
        arguments = {"type": "brand_direction", "title": text}
        arguments["activity_ids"] = [task.id for task in about]
        return "create_approval", arguments, partial(model.creates_approval, attempt, about)

    def several(self, index: int) -> list[Task]:
        """Return up to three tasks, oldest first."""
        tasks = self.model.tasks
        chosen = {index % len(tasks), (index * 7 + 3) % len(tasks), (index * 13 + 5) % len(tasks)}
        return [tasks[number] for number in sorted(chosen)]

    # What others do during a call. The rules of operators implement it.

    @abstractmethod
    def cancel(self, task: Task, fate: str = "kept") -> None:
        """Cancel the task as an operator."""

    @abstractmethod
    def money_comes_or_is_gone(self, there_is: bool) -> None:
        """Raise the caps of all budgets, or lower them below what any run costs."""

    @abstractmethod
    def reassign(self, task: Task, role: str | None, fate: str = "kept") -> None:
        """Reassign the task to this agent or to a person, as an operator."""


def _receipt(attempt: Attempt, content: str, report: Callable[[Attempt, str], None]) -> Receipt:
    """Return the receipt of a report: a repetition is recognised, after a tool nothing counts, other late ones are refused."""
    if attempt.tool:
        return Receipt.SUSPENDED
    if content in (attempt.output, attempt.error):
        return Receipt.REPEATED
    report(attempt, content)
    return Receipt.ACCEPTED
