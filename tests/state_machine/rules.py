"""The rules: everything that may happen, each as one thing that the machine can draw."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from activities import approvals, blockers, cancellation, deadletters, people, reassignment
from activities.api.reports import Receipt
from pipelines import cancellation as pipeline_cancellation
from tests.state_machine.flow import PIPELINES, Flow
from tests.state_machine.life import FAILED, Refused
from tests.state_machine.machine import Machine, pick
from tests.state_machine.tasks import Attempt, Rules, Task
from tests.state_machine.world import ROLES, decision_rules, stored_rules, voter

VOTERS = ("ada", "ben", "eve")
RULES = (
    None,
    None,
    Rules(on_timeout="approve"),
    Rules(on_timeout="reject"),
    Rules(quorum=2, voters=3),
    Rules(quorum=2, on_timeout="escalate", asked_by="ada"),
)
indexes = st.integers(min_value=0, max_value=30)
rules_of_decisions = st.sampled_from(RULES)
roles = st.sampled_from((*ROLES, None))  # None: a person
fates = st.sampled_from(("kept", "kept", "kept", "kept", "crash", "lost"))
ends = st.sampled_from(("result", "result", "accepts", "accepts", "again", "never", "limited", "dies"))
durings = st.sampled_from(
    ("nothing", "nothing", "nothing", "blocker", "review", "part", "idle part", "approval", "hands on", "is cancelled", "is given up for lost")
)
tools = st.sampled_from(("blocker", "review", "part", "part", "idle part", "approval", "approval over others", "hands on"))


class Anything(Machine):
    """Work comes in, agents work, people decide, clocks run, and things go wrong, in any order."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[tuple[Attempt, str, dict[str, Any], dict[str, Any]]] = []

    # Work comes in.

    @rule(role=st.sampled_from(ROLES), gated=st.booleans(), rules=rules_of_decisions, attempts=st.integers(1, 2),
          key=st.sampled_from((None, None, "one")), later=st.sampled_from((False, False, False, True)), fate=fates)  # fmt: skip
    def work_for_an_agent(
        self, role: str, gated: bool, rules: Rules | None, attempts: int, key: str | None, later: bool, fate: str
    ) -> None:
        task = partial(
            Task, agent=role, approval_wanted=gated, rules=rules, most_attempts=attempts, key=key, due=not later, later=later
        )
        fields = {
            "agent_role": role, "requires_approval": gated, "decision_rules": stored_rules(rules), "max_attempts": attempts, "dedup_key": key,
            "not_before": datetime.now(UTC) + timedelta(days=1) if later else None,
        }  # fmt: skip
        self.happens(lambda: self.model.submit(task()), lambda: self.world.submit(**fields), fate)

    @rule(gate=st.booleans(), rules=rules_of_decisions, fate=fates)
    def work_for_a_person(self, gate: bool, rules: Rules | None, fate: str) -> None:
        fields = {"human_role": "editor", "is_approval_gate": gate, "decision_rules": stored_rules(rules)}
        self.happens(
            lambda: self.model.submit(Task(gate=gate, rules=rules)), lambda: self.world.submit(**fields), fate
        )

    @rule(key=st.sampled_from(sorted(PIPELINES)))
    def a_pipeline_starts(self, key: str) -> None:
        run_id = self.world.start(key)
        Flow.begin(self.model, key).id = run_id

    # Agents work.

    @rule(index=indexes, during=durings, end=ends, answered=st.booleans())
    def a_message_arrives(self, index: int, during: str, end: str, answered: bool) -> None:
        message = self.next_message(index)
        if message is not None:
            self.deliver(message, lambda attempt: self._during(attempt, during, answered), end)

    @rule(index=indexes)
    def a_message_comes_again(self, index: int) -> None:
        message = pick(self.world.delivered, index)
        if message is not None:
            self.deliver(message, lambda attempt: None, "result")

    def _during(self, attempt: Attempt, what: str, answered: bool) -> None:
        """While its worker waits for the agent."""
        if what == "is cancelled":
            self._cancel(attempt.task)
        elif what == "is given up for lost":
            self.happens(lambda: self.model.is_lost(attempt), lambda: self.world.lose(attempt.token))
        elif what != "nothing":
            self._call(attempt, what, 0, None, "kept")
            self.engine_and_model_agree()
            if answered and attempt.task.waits_for is not None:
                self.answer(attempt.task.waits_for)

    @rule(index=indexes, end=st.sampled_from(("result", "again", "never", "limited")), fate=fates)
    def an_accepted_run_ends(self, index: int, end: str, fate: str) -> None:
        attempt = pick(self.accepted(), index)
        if attempt is not None:
            self._report(attempt, end, fate)

    @rule(index=indexes, end=st.sampled_from(("result", "same result", "again", "never")))
    def a_report_comes_late(self, index: int, end: str) -> None:
        attempt = pick([attempt for attempt in self.model.attempts if attempt.state != "running"], index)
        if attempt is not None:
            self._report(attempt, end, "kept")

    def _report(self, attempt: Attempt, end: str, fate: str) -> None:
        output = attempt.output or "nothing" if end == "same result" else self.text("output")
        if end in ("result", "same result"):
            self.happens(
                lambda: self._completes(attempt, output), lambda: self.world.complete(attempt.token, output), fate
            )
        else:
            self.happens(lambda: self._fails(attempt, end), lambda: self.world.fail(attempt.token, end), fate)

    def _completes(self, attempt: Attempt, output: str) -> Receipt:
        """A repetition is answered as the first; after a tool nothing counts; anything else is refused."""
        if attempt.tool:
            return Receipt.PUT_ASIDE
        if attempt.state == "completed" and attempt.output == output:
            return Receipt.REPEATED
        self.model.completes(attempt, output)
        return Receipt.ACCEPTED

    def _fails(self, attempt: Attempt, kind: str) -> Receipt:
        if attempt.tool:
            return Receipt.PUT_ASIDE
        if attempt.state == "failed" and attempt.error == kind:
            return Receipt.REPEATED
        self.model.fails(attempt, kind)
        return Receipt.ACCEPTED

    @rule(index=indexes, tool=tools, other=indexes, rules=rules_of_decisions, role=roles, fate=fates)
    def an_agent_calls_a_tool(
        self, index: int, tool: str, other: int, rules: Rules | None, role: str | None, fate: str
    ) -> None:
        attempt = pick(self.accepted(), index)
        if attempt is not None:
            self._call(attempt, tool, other, rules, fate, role)

    @rule(index=indexes, tool=tools)
    def an_agent_calls_a_tool_too_late(self, index: int, tool: str) -> None:
        attempt = pick([attempt for attempt in self.model.attempts if attempt.state != "running"], index)
        if attempt is not None:
            self._call(attempt, tool, index, None, "kept")

    @rule(index=indexes)
    def a_call_of_a_tool_comes_again(self, index: int) -> None:
        call = pick(self.calls, index)
        if call is not None:
            attempt, tool, arguments, body = call
            answer = self.world.call(attempt.token, tool, arguments)
            assert (answer.repeated, answer.body) == (True, body)

    def _call(
        self, attempt: Attempt, tool: str, other: int, rules: Rules | None, fate: str, role: str | None = "dev"
    ) -> None:
        name, arguments, modelled = self._tool(attempt, tool, other, rules, role)
        answers: list[Any] = []
        self.happens(modelled, lambda: answers.append(self.world.call(attempt.token, name, arguments)), fate)
        if answers and fate != "crash":
            self.calls.append((attempt, name, arguments, answers[0].body))

    def _tool(
        self, attempt: Attempt, tool: str, other: int, rules: Rules | None, role: str | None
    ) -> tuple[str, dict[str, Any], Callable[[], Any]]:
        """Its name and arguments, and what the model does instead."""
        said, model = self.text(tool), self.model
        whom = {"agent_role": role} if role else {"human_role": "editor"}
        if tool == "blocker":
            arguments: dict[str, Any] = {"type": "api_outage", "message": said}
            return "report_blocker", arguments, lambda: model.reports_blocker(attempt)
        if tool == "review":
            arguments = {"question": said, "rules": decision_rules(rules)}
            return "request_human_review", arguments, lambda: model.asks_for_review(attempt, rules)
        if tool in ("part", "idle part"):
            blocking = tool == "part"
            arguments = {"name": said, "description": "", "blocking": blocking, **whom}
            return "create_subtask", arguments, lambda: model.creates_part(attempt, agent=role, blocking=blocking)
        if tool == "hands on":
            return "reassign_task", {"reason": said, **whom}, lambda: model.hands_on(attempt, role)
        about = [attempt.task] if tool == "approval" else self._others(other)
        arguments = {"type": "brand_direction", "title": said, "activity_ids": [task.id for task in about], "rules": decision_rules(rules)}
        return "create_approval", arguments, lambda: model.asks_over(attempt, about, rules)

    def _others(self, index: int) -> list[Task]:
        """Up to three tasks, oldest first."""
        tasks = self.model.tasks
        chosen = {index % len(tasks), (index * 7 + 3) % len(tasks), (index * 13 + 5) % len(tasks)}
        return [tasks[number] for number in sorted(chosen)]

    # People decide.

    @rule(index=indexes, decision=st.sampled_from(("approve", "approve", "reject")), who=st.sampled_from(VOTERS), by_work=st.booleans(), fate=fates)  # fmt: skip
    def a_person_decides(self, index: int, decision: str, who: str, by_work: bool, fate: str) -> None:
        task = pick([task for task in self.open_questions() if task.decision or task.gate], index)
        if task is not None:
            self._decide(task.parent if by_work and task.link == "gate" and task.parent else task, decision, who, fate)

    @rule(index=indexes, decision=st.sampled_from(("approve", "reject")), who=st.sampled_from(VOTERS))
    def a_person_decides_whatever_it_is(self, index: int, decision: str, who: str) -> None:
        task = pick(self.tasks(), index)
        if task is not None:
            self._decide(task, decision, who, "kept")

    def _decide(self, task: Task, decision: str, who: str, fate: str) -> None:
        self.happens(
            lambda: self.model.decides(task, decision, who),
            lambda: approvals.decide(self.tenant, task.id, decision, by=voter(who), notes="because"),  # type: ignore[arg-type]
            fate,
        )

    @rule(index=indexes, what=st.sampled_from(("takes up", "completes", "completes", "resolves", "resolves")), anything=st.booleans(), fate=fates)  # fmt: skip
    def a_person_works(self, index: int, what: str, anything: bool, fate: str) -> None:
        task = pick(self.tasks() if anything else self.open_questions(), index)
        if task is not None:
            self._work(task, what, fate)

    def _work(self, task: Task, what: str, fate: str = "kept") -> None:
        model, tenant, task_id = self.model, self.tenant, task.id
        assert task_id is not None
        if what == "takes up":
            self.happens(lambda: model.takes_up(task), lambda: people.take_up(tenant, task_id, actor="people"), fate)
        elif what == "completes":
            self.happens(
                lambda: model.person_completes(task), lambda: people.complete(tenant, task_id, actor="people"), fate
            )
        else:
            self.happens(
                lambda: model.resolves(task), lambda: blockers.resolve(tenant, task_id, actor="people", note="gone"), fate
            )

    @rule(index=indexes, other=indexes, rules=rules_of_decisions, fate=fates)
    def people_ask_over_several(self, index: int, other: int, rules: Rules | None, fate: str) -> None:
        if self.model.tasks:
            about = self._others(index + 31 * other)
            self.happens(
                lambda: self.model.people_ask(about, rules),
                lambda: self.world.ask_over([task.id for task in about if task.id], rules),
                fate,
            )

    @rule(index=indexes, fate=fates)
    def an_approval_is_withdrawn(self, index: int, fate: str) -> None:
        task = pick([task for task in self.tasks() if task.link == "approval"], index)
        if task is not None:
            self.happens(
                lambda: self.model.withdraw(task),
                lambda: approvals.withdraw(self.tenant, task.id, by=voter("people"), reason="no need"),  # type: ignore[arg-type]
                fate,
            )

    # Operators.

    @rule(index=indexes, anything=st.sampled_from((True, False, False, False)), fate=fates)
    def an_operator_cancels(self, index: int, anything: bool, fate: str) -> None:
        task = pick([task for task in self.tasks() if anything or not task.ended], index)
        if task is not None:
            self._cancel(task, fate)

    def _cancel(self, task: Task, fate: str = "kept") -> None:
        self.happens(
            lambda: self.model.cancel(task),
            lambda: cancellation.cancel(self.tenant, task.id, actor="people", reason="enough"),  # type: ignore[arg-type]
            fate,
        )

    @rule(index=indexes, role=roles, anything=st.sampled_from((True, False, False, False)), fate=fates)
    def an_operator_hands_on(self, index: int, role: str | None, anything: bool, fate: str) -> None:
        task = pick([task for task in self.tasks() if anything or not task.ended], index)
        if task is not None:
            whom = {"agent_role": role} if role else {"human_role": "editor"}
            self.happens(
                lambda: self.model.reassign(task, role),
                lambda: reassignment.reassign(self.tenant, task.id, actor="people", reason="other", **whom),  # type: ignore[arg-type]
                fate,
            )

    @rule(index=indexes, anything=st.sampled_from((True, False, False, False)), fate=fates)
    def an_operator_tries_again(self, index: int, anything: bool, fate: str) -> None:
        task = pick([task for task in self.tasks() if anything or task.status in FAILED], index)
        if task is not None:
            self.happens(
                lambda: self.model.retry(task),
                lambda: cancellation.retry(self.tenant, task.id, actor="people"),  # type: ignore[arg-type]
                fate,
            )

    @rule(index=indexes)
    def an_operator_cancels_a_run(self, index: int) -> None:
        flow = pick([flow for flow in self.model.flows if flow.status == "running"], index)
        if flow is not None:
            self.happens(
                lambda: self._cancel_flow(flow),
                lambda: pipeline_cancellation.cancel_run(self.tenant, flow.id, actor="people"),  # type: ignore[arg-type]
            )

    def _cancel_flow(self, flow: Flow) -> None:
        flow.status = "cancelled"
        for task in [task for task in self.tasks() if task.run is flow and not task.ended]:
            try:
                self.model.cancel(task)
            except Refused:
                continue

    @rule(fate=fates)
    def all_that_failed_is_replayed(self, fate: str) -> None:
        self.happens(self.model.replay, self.world.replay, fate)

    @rule(fate=fates)
    def all_that_failed_is_dismissed(self, fate: str) -> None:
        self.happens(self.model.dismiss, self.world.dismiss, fate)

    # What goes on by itself, and what goes wrong.

    @rule()
    def people_are_told_of_failures(self) -> None:
        self.happens(self.model.tell_of_letters, self.tell_of_letters)

    def tell_of_letters(self) -> None:
        deadletters.handle_waiting()

    @rule()
    def nobody_decides_in_time(self) -> None:
        self.happens(self.model.time_passes, self.world.time_passes)

    @rule()
    def delays_end(self) -> None:
        self.happens(self.model.delays_end, self.world.delays_end)

    @rule()
    def what_was_lost_is_found(self) -> None:
        self.recover()

    @rule(index=indexes)
    def a_run_is_given_up_for_lost(self, index: int) -> None:
        attempt = pick([attempt for attempt in self.model.attempts if attempt.live], index)
        if attempt is not None:
            self.happens(lambda: self.model.is_lost(attempt), lambda: self.world.lose(attempt.token))

    @rule()
    def redis_is_wiped(self) -> None:
        self.world.wipe_redis()

    # Coming to rest.

    def answer(self, task: Task) -> None:
        """A good answer, whatever the question is."""
        if task.agent is not None:
            return
        if not task.decision:
            self._work(task, "resolves" if task.origin.link == "resolution" else "completes")
            return
        for who in (*VOTERS, "zoe"):
            if task.open and who not in task.votes and (task.rules is None or task.rules.asked_by != who):
                self._decide(task, "approve", who, "kept")

    def give_up(self, task: Task) -> None:
        self._cancel(task)
