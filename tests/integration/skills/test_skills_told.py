"""What a run is told of its tenant's skills, and what it reads of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from agents import skills
from agents.contracts import (
    Accepted,
    AgentRequest,
    AgentResult,
    RunLink,
)
from agents.payload import job_of
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.agent_runs.accepted_work import RESULT, Agent, over
from tests.integration.skills.knowledge import CLIENT, TONE, add, read, run
from tests.integration.test_api_access import problem


@pytest.fixture
def remote(engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of the role qa is somewhere else: it is called over HTTP, as far as the engine knows."""

    class Elsewhere:
        def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
            return engine.agent(request)

    engine.serve(acme, "qa", adapter="http", endpoint="http://127.0.0.1:9/agent")
    monkeypatch.setattr("agents.adapters.get", lambda name: Elsewhere())


@pytest.mark.usefixtures("remote")
def test_an_agent_elsewhere_is_told_the_context_and_where_its_skills_are(
    engine: Engine, acme: Tenant
) -> None:
    add(acme, **CLIENT)
    add(acme, version=3)
    add(acme, key="layout", roles=["dev"])
    add(acme, key="old", enabled=False)

    request = run(engine, acme)

    url = f"{request.callback.url}skills/tone/"
    assert job_of(request)["skills"] == {
        "context": [{"name": "Acme", "content": "# Acme\n\nSells tea."}],
        "manifest": [
            {"key": "tone", "name": "Tone", "description": "How we sound.", "version": 3, "url": url}
        ],
    }
    assert request.skills_dir is None
    assert "Sells tea." in request.prompt
    assert "Be kind." not in request.prompt


@pytest.mark.usefixtures("remote")
def test_the_job_that_is_told_again_has_the_same_skills(engine: Engine, acme: Tenant) -> None:
    add(acme, **CLIENT)
    add(acme)
    engine.agent.behaviour = lambda request: Accepted()
    request = run(engine, acme)

    job = Agent(request).get().json()

    assert job["skills"] == job_of(request)["skills"]


def test_instructions_are_told_with_every_task(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", instructions="You test thoroughly.")

    request = run(engine, acme)

    assert request.instructions == job_of(request)["instructions"] == "You test thoroughly."
    assert "## Instructions\n\nYou test thoroughly.\n" in request.prompt
    assert "Instructions" not in run(engine, acme, "dev").prompt


def test_a_tenant_knows_its_own_skills_alone(engine: Engine, acme: Tenant, other_tenant: Tenant) -> None:
    add(other_tenant)
    add(other_tenant, **CLIENT)

    assert job_of(run(engine, acme))["skills"] == {"context": [], "manifest": []}


def test_a_tenant_without_skills_pays_nothing_for_them(engine: Engine, acme: Tenant) -> None:
    run(engine, acme)
    statements: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(note):
        run(engine, acme)

    assert not [sql for sql in statements if "agents_skill" in sql]
    assert not Path(skills._home()).exists()


@pytest.fixture
def asking(engine: Engine, acme: Tenant) -> Agent:
    """An agent at work, which may ask for its skills."""
    add(acme, version=4)
    engine.agent.behaviour = lambda request: Accepted()
    return Agent(run(engine, acme))


def test_an_agent_reads_a_skill_with_the_token_of_its_run(asking: Agent) -> None:
    answer = read(asking)

    assert answer.json() == {**TONE, "version": 4}
    assert answer["ETag"] == '"4"'


@pytest.mark.parametrize(
    "fields",
    [{"roles": ["dev"]}, {"enabled": False}, {"kind": "context"}],
    ids=["of others", "off", "no skill"],
)
def test_what_an_agent_may_not_know_is_not_there(asking: Agent, acme: Tenant, fields: dict[str, Any]) -> None:
    add(acme, **{"key": "secret", **fields})

    problem(read(asking, "secret"), 404, "not_found")
    problem(read(asking, "no-such"), 404, "not_found")


def test_skills_are_read_while_the_run_is_live_and_by_nobody_else(api: Any, asking: Agent) -> None:
    problem(api("admin").get(f"/{asking.address}skills/tone/"), 401, "invalid_token")

    asking.post("complete", RESULT)

    over(read(asking), "completed already")
