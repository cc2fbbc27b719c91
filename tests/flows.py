"""Small pipelines, started and inspected in one line each."""

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
    """Return the definition of a step, by default of the scripted agent."""
    assignee = {} if "human_role" in more else {"agent_role": "qa"}
    return {"id": name, "depends_on": list(after), **assignee, **more}


def answer_by_step(data: dict[str, Any]) -> Callable[[AgentRequest], AgentResult]:
    """Return an agent that answers each step with its data. A function is called with the request, and an error is raised."""

    def behave(request: AgentRequest) -> AgentResult:
        value = data.get(request.pipeline_step or "")
        value = value(request) if callable(value) else value
        if isinstance(value, Exception):
            raise value
        return Completed(Output(content=f"{request.pipeline_step}: done", data=value))

    return behave


BROKEN = PermanentAgentError("no")


class Flow:
    """A run of a new pipeline of these steps."""

    def __init__(self, engine: Engine, tenant: Tenant, *steps: dict[str, Any], **new: Any) -> None:
        self.engine, self.tenant = engine, tenant
        definition = {"key": "flow", "name": "Flow", "params": new.pop("defaults", {}), "steps": list(steps)}
        versions.save(tenant.pk, definition, actor="test")
        self.id: UUID = start_run(tenant.pk, "flow", NewRun(**new), actor="test").pk

    def drain(self, **data: Any) -> Flow:
        """Let the agents answer with this data until no work is left."""
        if data:
            self.engine.agent.behaviour = answer_by_step(data)
        self.engine.drain()
        return self

    def deliver(self, count: int, **data: Any) -> Flow:
        """Deliver exactly so many messages to agents that answer with this data."""
        self.engine.agent.behaviour = answer_by_step(data)
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
        (row,) = self.rows(step=name, branch=branch)
        return row

    @property
    def states(self) -> dict[str, str]:
        return {row.step: row.status for row in self.rows(branch=0)}

    def branches(self, name: str) -> list[str]:
        return [row.status for row in self.rows(step=name, branch__gt=0)]

    def activities(self, **which: Any) -> list[Activity]:
        with tenant_scope(self.tenant.pk):
            rows = Activity.objects.filter(pipeline_run_id=self.id, **which)
            return list(rows.order_by("branch", "created_at", "pk"))

    def activity(self, **which: Any) -> Activity:
        (only,) = self.activities(**which)
        return only

    def calls_of_step(self, name: str) -> list[AgentRequest]:
        """Return the requests to the agent of a step, in the order of its branches."""
        calls = [call for call in self.engine.agent.calls if call.pipeline_step == name]
        return sorted(calls, key=lambda call: call.params.get("item_index", 0))
