"""The skills that a run receives with its job, and those that its agent reads."""

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
from tests.accepted_work import RESULT, AgentClient, assert_superseded
from tests.answers import problem
from tests.engine import Engine
from tests.integration.skills.knowledge import CLIENT, TONE, add_skill, read, run


@pytest.fixture
def remote(engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the agent of the role qa look like one that is called over HTTP."""

    class RemoteAdapter:
        def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
            return engine.agent(request)

    engine.serve(acme, "qa", adapter="http", endpoint="http://127.0.0.1:9/agent")
    monkeypatch.setattr("agents.adapters.get", lambda name: RemoteAdapter())


@pytest.mark.usefixtures("remote")
def test_a_remote_agent_receives_the_context_and_addresses_of_its_skills(
    engine: Engine, acme: Tenant
) -> None:
    add_skill(acme, **CLIENT)
    add_skill(acme, version=3)
    add_skill(acme, key="layout", roles=["dev"])
    add_skill(acme, key="old", enabled=False)

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
def test_the_job_that_is_read_again_has_the_same_skills(engine: Engine, acme: Tenant) -> None:
    add_skill(acme, **CLIENT)
    add_skill(acme)
    engine.agent.behaviour = lambda request: Accepted()
    request = run(engine, acme)

    job = AgentClient(request).get_job().json()

    assert job["skills"] == job_of(request)["skills"]


def test_instructions_are_part_of_every_job(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", instructions="You test thoroughly.")

    request = run(engine, acme)

    assert request.instructions == job_of(request)["instructions"] == "You test thoroughly."
    assert "## Instructions\n\nYou test thoroughly.\n" in request.prompt
    assert "Instructions" not in run(engine, acme, "dev").prompt


def test_a_run_receives_skills_of_its_tenant_only(engine: Engine, acme: Tenant, other_tenant: Tenant) -> None:
    add_skill(other_tenant)
    add_skill(other_tenant, **CLIENT)

    assert job_of(run(engine, acme))["skills"] == {"context": [], "manifest": []}


def test_a_tenant_without_skills_takes_no_queries_for_them(engine: Engine, acme: Tenant) -> None:
    run(engine, acme)
    statements: list[str] = []

    def record_statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(record_statement):
        run(engine, acme)

    assert not [sql for sql in statements if "agents_skill" in sql]
    assert not Path(skills._home()).exists()


@pytest.fixture
def agent(engine: Engine, acme: Tenant) -> AgentClient:
    """An agent at work that may read its skills."""
    add_skill(acme, version=4)
    engine.agent.behaviour = lambda request: Accepted()
    return AgentClient(run(engine, acme))


def test_an_agent_reads_a_skill_with_the_token_of_its_run(agent: AgentClient) -> None:
    answer = read(agent)

    assert answer.json() == {**TONE, "version": 4}
    assert answer["ETag"] == '"4"'


@pytest.mark.parametrize(
    "fields",
    [{"roles": ["dev"]}, {"enabled": False}, {"kind": "context"}],
    ids=["of another role", "disabled", "context"],
)
def test_other_skills_are_not_found(agent: AgentClient, acme: Tenant, fields: dict[str, Any]) -> None:
    add_skill(acme, **{"key": "secret", **fields})

    problem(read(agent, "secret"), 404, "not_found")
    problem(read(agent, "no-such"), 404, "not_found")


def test_skills_are_readable_with_the_token_of_a_live_run_only(api: Any, agent: AgentClient) -> None:
    problem(api("admin").get(f"/{agent.address}skills/tone/"), 401, "invalid_token")

    agent.post("complete", RESULT)

    assert_superseded(read(agent), "completed already")
