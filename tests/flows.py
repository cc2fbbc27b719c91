"""Small pipelines for tests, started and inspected in one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from activities.models import Activity
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError
from pipelines import versions
from pipelines.models import PipelineRun, StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine


def step(name: str, *after: str, **more: Any) -> dict[str, Any]:
    """A step of the scripted agent, unless it says whose it is."""
    assignee = {} if "human_role" in more else {"agent_role": "qa"}
    return {"id": name, "depends_on": list(after), **assignee, **more}


def answering(data: dict[str, Any]) -> Callable[[AgentRequest], AgentResult]:
    """An agent that gives each step the data that is named here; a function is asked, and an error is raised."""

    def behave(request: AgentRequest) -> AgentResult:
        found = data.get(request.pipeline_step or "")
        value = found(request) if callable(found) else found
        if isinstance(value, Exception):
            raise value
        return Completed(Output(content=f"{request.pipeline_step}: done", data=value))

    return behave


BROKEN = PermanentAgentError("no")


class Flow:
    """One run of a pipeline of these steps, of a tenant whose agents are the scripted one."""

    def __init__(self, engine: Engine, tenant: Tenant, *steps: dict[str, Any], **new: Any) -> None:
        self.engine, self.tenant = engine, tenant
        definition = {"key": "flow", "name": "Flow", "params": new.pop("defaults", {}), "steps": list(steps)}
        versions.save(tenant.pk, definition, actor="test")
        self.id: UUID = start_run(tenant.pk, "flow", NewRun(**new), actor="test").pk

    def drain(self, **data: Any) -> Flow:
        """Let the agents answer with this data until nothing is left to do."""
        if data:
            self.engine.agent.behaviour = answering(data)
        self.engine.drain()
        return self

    def deliver(self, count: int, **data: Any) -> Flow:
        """Let the agents take so many messages, no more."""
        self.engine.agent.behaviour = answering(data)
        for _ in range(count):
            assert self.engine.deliver()
        return self

    @property
    def run(self) -> PipelineRun:
        with tenant_scope(self.tenant.pk):
            return PipelineRun.objects.get(pk=self.id)

    @property
    def outcome(self) -> tuple[str, int]:
        return self.run.status, self.run.unsettled

    def rows(self, **which: Any) -> list[StepRun]:
        with tenant_scope(self.tenant.pk):
            return list(StepRun.objects.filter(run_id=self.id, **which).order_by("position", "branch"))

    def row(self, name: str, branch: int = 0) -> StepRun:
        (found,) = self.rows(step=name, branch=branch)
        return found

    @property
    def states(self) -> dict[str, str]:
        return {row.step: row.status for row in self.rows(branch=0)}

    def branches(self, name: str) -> list[str]:
        return [row.status for row in self.rows(step=name, branch__gt=0)]

    def activities(self, **which: Any) -> list[Activity]:
        with tenant_scope(self.tenant.pk):
            found = Activity.objects.filter(pipeline_run_id=self.id, **which)
            return list(found.order_by("branch", "created_at", "pk"))

    def only(self, **which: Any) -> Activity:
        (found,) = self.activities(**which)
        return found

    def told(self, name: str) -> list[AgentRequest]:
        """What the agent was asked for a step, in the order of its branches."""
        calls = [call for call in self.engine.agent.calls if call.pipeline_step == name]
        return sorted(calls, key=lambda call: call.params.get("item_index", 0))
