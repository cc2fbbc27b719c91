"""The model's pipelines: what follows in a run when a step's task has ended. Small on purpose; steps fail or continue, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.state_machine.life import ASIDE
from tests.state_machine.tasks import GATED, NORMAL, Task

if TYPE_CHECKING:
    from tests.state_machine.ends import Ends

#: What the machine starts. A gate between two agents; two roots that one step joins, beside one that goes on whatever happens.
PIPELINES: dict[str, list[dict[str, Any]]] = {
    "gated": [
        {"id": "draft", "agent_role": "qa", "requires_approval": True, "depends_on": []},
        {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["draft"]},
        {"id": "publish", "agent_role": "dev", "depends_on": ["sign-off"]},
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
    def goes_on(self) -> bool:
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
        """A task of this run has ended or failed."""
        if task.step is None or task.link in ASIDE or task.status == "reassigned":
            return
        step = self.steps[task.step]
        if task.status == "rejected" and self._goes_on_after_rejection(model, task, step):
            return
        if step.status != "active":
            return
        step.status = "done" if task.status in ("done", "approved") else "failed"
        if self.status == "running":
            self._follow(model, [name for name, other in self.steps.items() if task.step in other.needs])
            self._end_if_settled()

    def _goes_on_after_rejection(self, model: Ends, task: Task, step: Step) -> bool:
        if self.status != "running":
            return True
        if task.gate:
            return self._send_back(model, task, step)
        revision = task.successor
        if revision is not None and step.task is task:
            step.task, step.round = revision, revision.round
        return revision is not None

    def _send_back(self, model: Ends, gate: Task, step: Step) -> bool:
        """The agents' steps before a gate that said no go back to work."""
        producers = [self.steps[name] for name in step.needs if self.steps[name].definition.get("agent_role")]
        if gate.round >= model.limits.rounds:
            return False
        made = False
        for producer in producers:
            if producer.status == "done" and producer.task is not None:
                producer.task = model.revise(producer.task, approval_wanted=False)
                producer.status, producer.round = "active", producer.task.round
                made = True
        if made:
            step.status, step.task, step.round = "pending", None, gate.round + 1
        return made

    def _follow(self, model: Ends, names: list[str]) -> None:
        for name in names:
            step = self.steps[name]
            if step.status != "pending":
                continue
            before = [self.steps[need].status for need in step.needs]
            if not step.goes_on and {"failed", "skipped"} & set(before):
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
        return self.steps[name].status == "failed" and (not after or any(not step.goes_on for step in after))

    def handed_on(self, model: Ends, task: Task, heir: Task, *, had_failed: bool) -> None:
        if task.step is None or task.link in ASIDE:
            return
        if had_failed:
            self.reopen(task)
        step = self.steps[task.step]
        if step.task is task:
            step.task, step.round = heir, heir.round

    def reopen(self, task: Task) -> None:
        """A failed step is under way again; what was skipped because of it waits again."""
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
        found: set[str] = set()
        to_see = [name]
        while to_see:
            current = to_see.pop()
            more = {after for after, step in self.steps.items() if current in step.needs} - found
            found |= more
            to_see += more
        return found

    def cancel(self, model: Ends) -> None:
        """Then its tasks are cancelled one by one, oldest first."""
        self.status = "cancelled"
