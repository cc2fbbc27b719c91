"""An agent of the Agent2Agent protocol serves a role: it asks a question, a person answers, and it completes its task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("a2a", reason="pip install orchestrator[a2a]")

from a2a.types import TaskState

from activities.models import Activity
from agents import outbound
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.a2a_agent import A2AAgent, ends, says
from tests.accepted_work import action_url
from tests.engine import Engine, in_another_thread


@pytest.fixture
def agent(settings: Any) -> Iterator[A2AAgent]:
    with A2AAgent() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
        yield running
    outbound.close_connections()


def test_an_agents_task_continues_after_a_person_has_answered_its_question(
    api: Any, agent: A2AAgent, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa", adapter="a2a", endpoint=agent.url)
    agent.turns = [ends(TaskState.TASK_STATE_INPUT_REQUIRED, "Formal or not?"), says("Good day.")]

    (activity_id,) = engine.submit(tenant, deliverable_id=uuid4())
    engine.drain()
    with tenant_scope(tenant.pk):
        question = Activity.objects.get(parent_id=activity_id)
    api("reviewer").post(f"/api/v1/activities/{question.pk}/approve/", {"notes": "Formal, please."})
    engine.drain()

    assert engine.status(tenant, activity_id) == "done"
    first, second = agent.heard
    assert (first.task_id, first.context_id) == (second.task_id, second.context_id)
    assert "Formal, please." in second.parts[0].text
    output = api("viewer").get(f"/api/v1/activities/{activity_id}/output/").json()
    assert output["content"] == "Good day."


def test_the_next_attempt_continues_the_task_that_was_begun(
    agent: A2AAgent, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa", adapter="a2a", endpoint=agent.url)
    agent.turns = [says("Good day.")]
    agent.hang_up_after = {"SendStreamingMessage": 1, "GetTask": 0}
    (activity_id,) = engine.submit(tenant, deliverable_id=uuid4())
    engine.deliver()
    agent.hang_up_after = {}

    engine.make_due(tenant)
    engine.drain()

    assert engine.status(tenant, activity_id) == "done"
    assert [run.status for run in engine.runs(tenant, activity_id)] == ["failed", "completed"]
    assert len(agent.heard) == 1, "the id of the task was stored when it began"


def test_work_that_is_cancelled_is_cancelled_at_the_agent_while_it_works(
    api: Any, agent: A2AAgent, engine: Engine, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    engine.serve(tenant, "qa", adapter="a2a", endpoint=agent.url)
    (activity_id,) = engine.submit(tenant, timeout_seconds=10)

    async def cancelled_meanwhile(task: Any, queue: Any) -> None:
        await task.start_work()
        in_another_thread(lambda: api("operator").post(action_url(activity_id, "cancel"), {}))
        await asyncio.Event().wait()

    agent.turns = [cancelled_meanwhile]
    engine.drain()

    assert engine.status(tenant, activity_id) == "cancelled"
    assert agent.cancelled == [agent.heard[0].task_id]
    # Not at the timeout, because its run could not ask whether anybody still wants the result.
    assert "link_failed" not in [getattr(record, "action", None) for record in caplog.records]
