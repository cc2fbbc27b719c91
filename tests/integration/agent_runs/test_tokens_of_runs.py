"""The token of a run authorises reports on this run and nothing else."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.core import signing

from activities import run_tokens
from activities.run_tokens import RunToken
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, assert_superseded
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def forge(text: str) -> str:
    return text[:-1] + ("A" if text[-1] != "A" else "B")


@in_one_test("verb", ["", "heartbeat", "complete", "fail", "tools/report_blocker"])
def test_only_the_token_of_the_run_is_accepted(api: Any, engine: Engine, acme: Tenant, verb: str) -> None:
    activity_id, agent = accept_work(engine, acme)
    request = engine.agent.calls[-1]
    user = api("admin")._credentials["HTTP_AUTHORIZATION"].partition(" ")[2]
    foreign_key = signing.dumps(
        [str(acme.pk), str(activity_id), str(agent.run_id), 1], salt="another.purpose"
    )

    def status(token: str | None) -> int:
        stranger = AgentClient(request, token or "x")
        if token is None:
            stranger.client.credentials()
        answer = stranger.post(verb, RESULT) if verb else stranger.get_job()
        return int(problem(answer, 401, "not_authenticated" if token is None else "invalid_token")["status"])

    assert {status(token) for token in (None, user, "", forge(request.callback.token), foreign_key)} == {401}
    assert engine.status(acme, activity_id) == "in_progress"


def test_a_token_does_not_open_another_run(engine: Engine, acme: Tenant) -> None:
    first_id, first = accept_work(engine, acme)
    second_id, second = accept_work(engine, acme)

    first.address = second.address

    for answer in (
        first.get_job(),
        first.post("complete", RESULT),
        first.post("heartbeat"),
        first.post("fail", {"error": {"message": "x"}}),
    ):
        problem(answer, 404, "not_found")
    assert {engine.status(acme, first_id), engine.status(acme, second_id)} == {"in_progress"}


def test_a_run_token_does_not_open_the_rest_of_the_api(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)

    for address in (
        "/api/v1/activities/",
        f"/api/v1/activities/{activity_id}/",
        "/api/v1/inbox/",
        "/api/v1/agent-configs/",
    ):
        problem(agent.client.get(address), 401, "invalid_token")
    problem(agent.client.post(f"/api/v1/activities/{activity_id}/approve/", {}), 401, "invalid_token")


def test_a_token_with_a_wrong_fence_tenant_or_activity_is_refused(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    request = engine.agent.calls[-1]

    for token in (
        RunToken(acme.pk, activity_id, agent.run_id, 0), RunToken(acme.pk, activity_id, agent.run_id, 2),
        RunToken(other_tenant.pk, activity_id, agent.run_id, 1), RunToken(acme.pk, uuid4(), agent.run_id, 1),
    ):  # fmt: skip
        stranger = AgentClient(request, run_tokens.issuing(token)().token)
        for answer in (
            stranger.get_job(),
            stranger.post("heartbeat"),
            stranger.post("complete", RESULT),
            stranger.post("fail", {"error": {"message": "x"}}),
        ):
            assert_superseded(answer)
    assert engine.status(acme, activity_id) == "in_progress"


def test_an_unknown_tool_is_404(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)

    problem(agent.post("tools/launch_rocket", {"name": "x"}), 404, "tool_not_available")
