"""An agent can read the job of its run as long as the run is live."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import pytest

from activities import outputs, run_tokens
from agents.contracts import Accepted, Completed, Output
from agents.payload import job_of
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, assert_superseded
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def test_the_job_is_returned_as_it_was_sent(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(
        engine,
        acme,
        params={"topic": "bees"},
        input={"content": "begin", "data": [1]},
        description="Write.",
        priority=4,
        deliverable_id=uuid4(),
    )
    sent = orjson.loads(orjson.dumps(job_of(engine.agent.calls[-1]), default=str))

    response = agent.get_job()

    assert response.status_code == 200
    job = response.json()
    assert job.keys() == sent.keys()
    varying = {"prompt", "deadline", "callback"}  # because the token contains its time of issue
    assert [run_tokens.read(one["callback"]["token"]) for one in (job, sent)] == [
        run_tokens.read(sent["callback"]["token"])
    ] * 2
    assert job["callback"]["url"] == sent["callback"]["url"]
    assert {name: job[name] for name in job if name not in varying} == {
        name: sent[name] for name in sent if name not in varying
    }
    assert "bees" in job["prompt"]


def test_the_job_of_a_revision_contains_the_notes_and_the_outputs_of_earlier_steps(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Completed(Output(f"{request.name} v{request.attempt}"))
    steps = [
        {"id": "a", "agent_role": "qa", "depends_on": []}, {"id": "b", "agent_role": "qa", "depends_on": []},
        {"id": "c", "agent_role": "qa", "depends_on": ["a", "b"], "requires_approval": True},
    ]  # fmt: skip
    versions.save(acme.pk, {"key": "join", "name": "Join", "steps": steps}, actor="test")
    start_run(acme.pk, "join", NewRun(), actor="test")
    engine.drain()
    engine.agent.behaviour = lambda request: Accepted()
    (gate,) = api().get("/api/v1/inbox/").json()["results"]
    api().post(f"/api/v1/activities/{gate['parent']}/reject/", {"notes": "Shorter."})
    outputs.copy_waiting()
    engine.drain()
    request = engine.agent.calls[-1]

    job = AgentClient(request).get_job().json()

    assert (job["wake_reason"], job["reviewer_notes"], job["rejection_ref"]) == (
        "rejection",
        "Shorter.",
        str(request.wake_context["rejection_ref"]),
    )
    assert {step: output["content"] for step, output in job["input"]["steps"].items()} == {
        "a": "a v1",
        "b": "b v1",
    }
    assert "c v1" in job["prompt"]


def test_the_job_of_an_ended_run_is_refused(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    agent.post("complete", RESULT)

    assert_superseded(agent.get_job(), "completed already")
