"""The model's pipelines: what follows in a run when the task of a step has ended. Steps fail or continue; nothing else is modelled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.state_machine.life import ASIDE
from tests.state_machine.tasks import GATED, NORMAL, Task

if TYPE_CHECKING:
    from tests.state_machine.ends import Ends

#: The pipelines that the machine starts: a gate between two agents, two gates about the same work, two roots with a join and a step that
#: continues on failure, and a chain of one role, whose steps may follow immediately.
PIPELINES: dict[str, list[dict[str, Any]]] = {
    "gated": [
        {"id": "draft", "agent_role": "qa", "requires_approval": True, "depends_on": []},
        {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["draft"]},
        {"id": "publish", "agent_role": "dev", "depends_on": ["sign-off"]},
    ],
    "reviewed": [
        {"id": "draft", "agent_role": "qa", "depends_on": []},
        {"id": "legal", "human_role": "editor", "is_approval_gate": True, "depends_on": ["draft"]},
        {"id": "brand", "human_role": "editor", "is_approval_gate": True, "depends_on": ["draft"]},
        {"id": "publish", "agent_role": "dev", "depends_on": ["legal", "brand"]},
    ],
    "chained": [
        {"id": "first", "agent_role": "qa", "depends_on": []},
        {"id": "second", "agent_role": "qa", "depends_on": ["first"]},
        {"id": "third", "agent_role": "qa", "depends_on": ["second"]},
    ],
    "joined": [
        {"id": "left", "agent_role": "qa", "depends_on": []},
        {"id": "right", "agent_role": "dev", "depends_on": []},
        {"id": "merge", "agent_role": "seo", "depends_on": ["left", "right"]},
        {"id": "tidy", "agent_role": "dev", "depends_on": ["right"], "on_upstream_failure": "continue"},
        {"id": "check", "human_role": "editor", "is_approval_gate": True, "depends_on": ["merge"]},
    ],
}


@dataclass
class Step:
    definition: dict[str, Any]
    status: str = "pending"
    task: Task | None = None
    round: int = 1

    @property
    def needs(self) -> list[str]:
        return list(self.definition.get("depends_on", ()))

    @property
    def continues_on_failure(self) -> bool:
        return self.definition.get("on_upstream_failure") == "continue"


@dataclass(eq=False)
class Flow:
    """One run of a pipeline."""

    key: str
    status: str = "running"
    steps: dict[str, Step] = field(default_factory=dict)
    id: UUID | None = None

    @classmethod
    def begin(cls, model: Ends, key: str) -> Flow:
        flow = cls(key, steps={definition["id"]: Step(definition) for definition in PIPELINES[key]})
        for name, step in flow.steps.items():
            if not step.needs:
                flow._start(model, name)
        model.flows.append(flow)
        return flow

    def _start(self, model: Ends, name: str) -> None:
        step = self.steps[name]
        role = step.definition.get("agent_role")
        before = [self.steps[need].definition for need in step.needs]
        decided = any(each.get("is_approval_gate") or each.get("requires_approval") for each in before)
        step.status = "active"
        step.task = model.add(
            Task(
                agent=role,
                gate=bool(step.definition.get("is_approval_gate")),
                run=self,
                step=name,
                round=step.round,
                approval_wanted=bool(step.definition.get("requires_approval")),
                priority=GATED if decided else NORMAL,
            )
        )

    def settled(self, model: Ends, task: Task) -> None:
        """Advance the run after one of its tasks has ended or failed."""
        if task.step is None or task.link in ASIDE or task.status == "reassigned":
            return
        step = self.steps[task.step]
        if task.status == "rejected" and self._handle_rejection(model, task, step):
            return
        if step.status != "active":
            return
        step.status = "done" if task.status in ("done", "approved") else "failed"
        if self.status == "running":
            self._follow(model, [name for name, other in self.steps.items() if task.step in other.needs])
            self._end_if_settled()

    def _handle_rejection(self, model: Ends, task: Task, step: Step) -> bool:
        if self.status != "running":
            return True
        if task.gate:
            return self._redo_producers(model, task, step)
        revision = task.successor
        if revision is not None and step.task is task:
            step.task, step.round = revision, revision.round
        return revision is not None

    def _redo_producers(self, model: Ends, gate: Task, step: Step) -> bool:
        """Revise the agents' steps before a gate that was rejected. It also asks again about a step that is being retried."""
        producers = {name for name in step.needs if self.steps[name].definition.get("agent_role")}
        if gate.round >= model.limits.rounds:
            return False
        at_work = any(self.steps[name].status == "active" for name in producers)
        revised = {name for name in producers if self.steps[name].status == "done"}
        for producer in (self.steps[name] for name in step.needs if name in revised):
            if producer.task is not None:
                producer.task = model.revise(producer.task, approval_wanted=False)
                producer.status, producer.round = "active", producer.task.round
        if revised or at_work:
            step.status, step.task, step.round = "pending", None, gate.round + 1
            self._ask_again(model, revised)
        return bool(revised) or at_work

    def _ask_again(self, model: Ends, revised: set[str]) -> None:
        """Let the other gates about the revised steps ask again: open ones, and approved ones after which nothing has started."""
        for name, step in self.steps.items():
            if not step.definition.get("is_approval_gate") or revised.isdisjoint(step.needs):
                continue
            is_unused = all(other.status == "pending" for other in self.steps.values() if name in other.needs)
            if step.status == "active" or (step.status == "done" and is_unused):
                question, step.task = step.task, None
                step.status, step.round = "pending", step.round + 1
                if question is not None and not question.ended:
                    model.withdraw(question)

    def _follow(self, model: Ends, names: list[str]) -> None:
        for name in names:
            step = self.steps[name]
            if step.status != "pending":
                continue
            before = [self.steps[need].status for need in step.needs]
            if not step.continues_on_failure and {"failed", "skipped"} & set(before):
                step.status = "skipped"
                self._follow(model, [after for after, other in self.steps.items() if name in other.needs])
            elif not {"pending", "active"} & set(before):
                self._start(model, name)

    def _end_if_settled(self) -> None:
        if any(step.status in ("pending", "active") for step in self.steps.values()):
            return
        self.status = "failed" if any(self._fails_run(name) for name in self.steps) else "completed"

    def _fails_run(self, name: str) -> bool:
        after = [step for step in self.steps.values() if name in step.needs]
        return self.steps[name].status == "failed" and (
            not after or any(not step.continues_on_failure for step in after)
        )

    def step_reassigned(self, model: Ends, task: Task, successor: Task, *, had_failed: bool) -> None:
        if task.step is None or task.link in ASIDE:
            return
        if had_failed:
            self.reopen(task)
        step = self.steps[task.step]
        if step.task is task:
            step.task, step.round = successor, successor.round

    def reopen(self, task: Task) -> None:
        """Reopen a failed step, and the steps that were skipped because of it."""
        if task.step is None or task.link in ASIDE or self.status == "cancelled":
            return
        if self.steps[task.step].status != "failed":
            return
        self.steps[task.step].status = "active"
        for name in self._behind(task.step):
            if self.steps[name].status == "skipped":
                self.steps[name].status = "pending"
        self.status = "running"

    def _behind(self, name: str) -> set[str]:
        behind: set[str] = set()
        to_visit = [name]
        while to_visit:
            current = to_visit.pop()
            more = {after for after, step in self.steps.items() if current in step.needs} - behind
            behind |= more
            to_visit += more
        return behind

    def cancel(self, model: Ends) -> None:
        """Cancel the run. Its tasks are cancelled afterwards, one by one, oldest first."""
        self.status = "cancelled"
