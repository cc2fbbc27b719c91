"""Rules of the machine: what people decide and do, and what happens if they do not."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from activities import suspension
from activities.human_tasks import decisions, human_work
from tests.state_machine.agents import Agents
from tests.state_machine.drawn import VOTERS, drawn_decisions, fates, indexes, rules_of_decisions, voters
from tests.state_machine.machine import pick
from tests.state_machine.tasks import Rules, Task
from tests.state_machine.world import stored_rules, voter


class People(Agents):
    """People approve, reject, review, resolve, complete, request and withdraw, and answer questions that are closed."""

    @rule(gate=st.booleans(), rules=rules_of_decisions, fate=fates)
    def work_for_a_person(self, gate: bool, rules: Rules | None, fate: str) -> None:
        fields = {"human_role": "editor", "is_approval_gate": gate, "decision_rules": stored_rules(rules)}
        modelled = partial(Task, gate=gate, rules=rules)
        self.happens(lambda: self.model.submit(modelled()), partial(self.world.submit, **fields), fate)

    # Decisions.

    @precondition(lambda self: self.open_decisions())
    @rule(index=indexes, decision=drawn_decisions, who=voters, by_work=st.booleans(), fate=fates)
    def a_person_decides(self, index: int, decision: str, who: str, by_work: bool, fate: str) -> None:
        if task := pick(self.open_decisions(), index):
            behind = task.parent if by_work and task.link == "gate" else None
            self.decide(behind or task, decision, who, fate)

    def open_decisions(self) -> list[Task]:
        return [task for task in self.open_questions() if task.decision or task.gate]

    def decide(self, task: Task, decision: str, who: str, fate: str = "kept") -> None:
        really = partial(
            decisions.decide, self.tenant, self.id_of(task), decision, by=voter(who), notes="because"
        )
        self.happens(partial(self.model.decides, task, decision, who), really, fate)

    @rule()
    def nobody_decides_in_time(self) -> None:
        self.happens(self.model.time_passes, self.world.time_passes)

    # Work.

    @precondition(lambda self: self.open_questions())
    @rule(index=indexes, what=st.sampled_from(("claim", "complete", "resolve")), fate=fates)
    def a_person_works(self, index: int, what: str, fate: str) -> None:
        if task := pick(self.open_questions(), index):
            self.work(task, what, fate)

    @precondition(lambda self: self.tasks("blocked"))
    @rule(index=indexes, fate=fates)
    def a_person_removes_a_blocker(self, index: int, fate: str) -> None:
        if task := pick(self.tasks("blocked"), index):
            self.work(task, "resolve", fate)

    def work(self, task: Task, what: str, fate: str = "kept") -> None:
        tenant, task_id = self.tenant, self.id_of(task)
        modelled, really = {
            "claim": (self.model.person_claims, partial(human_work.take_up, tenant, task_id, actor="people")),
            "complete": (
                self.model.person_completes,
                partial(human_work.complete, tenant, task_id, actor="people", note="gone"),
            ),
            "resolve": (
                self.model.resolves,
                partial(suspension.resolve_blocker, tenant, task_id, actor="people", note="gone"),
            ),
        }[what]
        self.happens(partial(modelled, task), really, fate)

    # Approvals over several tasks.

    @precondition(lambda self: self.model.tasks)
    @rule(index=st.integers(0, 900), rules=rules_of_decisions, fate=fates)
    def people_ask_over_several(self, index: int, rules: Rules | None, fate: str) -> None:
        about = self.several(index)
        really = partial(self.world.ask_over, [self.id_of(task) for task in about], rules)
        self.happens(partial(self.model.people_ask, about, rules), really, fate)

    @precondition(lambda self: any(task.link == "approval" for task in self.model.tasks))
    @rule(index=indexes, fate=fates)
    def an_approval_is_taken_back(self, index: int, fate: str) -> None:
        if task := pick([task for task in self.model.tasks if task.link == "approval"], index):
            really = partial(
                decisions.withdraw, self.tenant, self.id_of(task), by=voter("people"), reason="no need"
            )
            self.happens(partial(self.model.withdraw, task), really, fate)

    # Coming to rest.

    def answer(self, task: Task) -> None:
        """Give a positive answer to any question."""
        if task.agent is not None:
            return
        if not task.decision:
            self.work(task, "resolve" if task.origin.link == "resolution" else "complete")
            return
        for who in (*VOTERS, "zoe"):
            if task.open and who not in task.votes and (task.rules is None or task.rules.asked_by != who):
                self.decide(task, "approve", who)
