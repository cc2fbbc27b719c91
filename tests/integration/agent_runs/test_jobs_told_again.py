"""The job of a run is told again, exactly as long as the run is live."""

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
from tests.engine import Engine
from tests.integration.agent_runs.accepted_work import RESULT, Agent, accepted, over

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_the_job_is_told_again_as_it_was(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(
        engine,
        acme,
        params={"topic": "bees"},
        input={"content": "begin", "data": [1]},
        description="Write.",
        priority=4,
        deliverable_id=uuid4(),
    )
    told = orjson.loads(orjson.dumps(job_of(engine.agent.calls[-1]), default=str))

    again = agent.get()

    assert again.status_code == 200
    job = again.json()
    assert job.keys() == told.keys()
    varying = {"prompt", "deadline", "callback"}  # the token says when it was made, too
    assert [run_tokens.read(one["callback"]["token"]) for one in (job, told)] == [
        run_tokens.read(told["callback"]["token"])
    ] * 2
    assert job["callback"]["url"] == told["callback"]["url"]
    assert {name: job[name] for name in job if name not in varying} == {
        name: told[name] for name in told if name not in varying
    }
    assert "bees" in job["prompt"]


def test_the_job_of_a_revision_holds_the_notes_and_the_joined_outputs(
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
    told = engine.agent.calls[-1]

    job = Agent(told).get().json()

    assert (job["wake_reason"], job["reviewer_notes"], job["rejection_ref"]) == (
        "rejection",
        "Shorter.",
        str(told.wake_context["rejection_ref"]),
    )
    assert {step: given["content"] for step, given in job["input"]["steps"].items()} == {
        "a": "a v1",
        "b": "b v1",
    }
    assert "c v1" in job["prompt"]


def test_the_job_of_a_run_that_has_ended_is_not_told_again(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(engine, acme)
    agent.post("complete", RESULT)

    over(agent.get(), "completed already")
