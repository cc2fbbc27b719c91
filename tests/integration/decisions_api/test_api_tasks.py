"""Tasks of people, and what operators do to work, over the API."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from agents.contracts import Accepted, Completed
from agents.exceptions import PermanentAgentError
from tenants.models import Tenant
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.decisions_api.questions import a_task, gated, gates, of
from tests.integration.test_api_access import problem

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_task_is_taken_up_and_completed_with_an_output(api: Any, engine: Engine, acme: Tenant) -> None:
    task = a_task(api("operator"))
    client = api("reviewer", name="Ann")

    started = client.post(of(task, "start")).json()
    done = client.post(
        of(task, "complete"),
        {"output": {"content": "Fine", "data": {"ok": True}, "content_type": "text/plain"}, "note": "Read."},
    )

    assert (started["status"], bool(started["started_at"]), started["allowed_actions"]) == (
        "in_progress",
        True,
        ["reassign", "complete", "cancel"],
    )
    assert (done.status_code, done.json()["status"], done.json()["decided_by"]) == (200, "done", "token:Ann")
    output = client.get(of(task, "output")).json()
    assert (output["content"], output["data"], output["content_type"]) == ("Fine", {"ok": True}, "text/plain")


def test_a_task_may_be_completed_at_once_and_without_an_output(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    task = a_task(api("operator"))

    assert api("reviewer").post(of(task, "complete")).json()["status"] == "done"
    again = problem(api("reviewer", name="Bob").post(of(task, "complete")), 409, "already_decided")
    assert again["detail"].startswith("token:reviewer of acme completed this at")
    problem(api("reviewer").post(of(task, "start")), 409, "transition_refused")


def test_a_gate_is_decided_and_not_completed(api: Any, engine: Engine, acme: Tenant) -> None:
    gated(engine, acme)
    (gate,) = gates(api())

    assert (
        "approve or reject"
        in problem(api().post(of(gate["id"], "complete")), 409, "transition_refused")["detail"]
    )


@pytest.mark.parametrize("verb", ["start", "complete"])
def test_an_agents_work_is_not_a_persons(api: Any, engine: Engine, acme: Tenant, verb: str) -> None:
    (one,) = engine.submit(acme)

    problem(api().post(of(one, verb)), 409, "transition_refused")


@in_one_test(
    ("verb", "body", "path"),
    [
        ("start", {"x": 1}, "x"), ("complete", {"output": "text"}, "output"), ("complete", {"output": {"content": 1}}, "output.content"),
        ("complete", {"output": {"content_type": "t" * 101}}, "output.content_type"), ("complete", {"notes": "x"}, "notes"),
        ("cancel", {"reason": 5}, "reason"), ("cancel", {"why": "x"}, "why"), ("retry", {"x": 1}, "x"), ("approve", {"note": "x"}, "note"),
    ],
)  # fmt: skip
def test_what_a_body_may_not_hold_is_named_by_its_path(
    api: Any, engine: Engine, acme: Tenant, verb: str, body: Any, path: str
) -> None:
    task = a_task(api())

    refused = problem(api().post(of(task, verb), body), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]


def test_what_waits_and_is_cancelled_never_starts(api: Any, engine: Engine, acme: Tenant) -> None:
    (one,) = engine.submit(acme)

    cancelled = api("operator").post(of(one, "cancel"), {"reason": "not needed"})
    engine.drain()

    assert (cancelled.status_code, cancelled.json()["status"], cancelled.json()["cancel_reason"]) == (
        200,
        "cancelled",
        "not needed",
    )
    assert engine.agent.calls == []
    problem(api("operator").post(of(one, "cancel")), 409, "transition_refused")


def test_cancelling_what_waits_for_an_approval_takes_the_question_back(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = gated(engine, acme)

    api("operator").post(of(waiting, "cancel"))

    assert gates(api()) == []


def test_a_gate_is_not_cancelled_alone(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = gated(engine, acme)
    (gate,) = gates(api())

    refused = problem(api("operator").post(of(gate["id"], "cancel")), 409, "transition_refused")

    assert str(waiting) in refused["detail"]
    assert api("reviewer").post(of(waiting, "approve")).status_code == 200


def test_failed_work_is_tried_again_with_all_its_attempts(api: Any, engine: Engine, acme: Tenant) -> None:
    def broken(request: object) -> Completed:
        raise PermanentAgentError("no")

    answer, engine.agent.behaviour = engine.agent.behaviour, broken
    (one,) = engine.submit(acme)
    engine.drain()
    engine.agent.behaviour = answer

    failed = api().get(of(one)).json()
    again = api("operator").post(of(one, "retry"))
    engine.drain()

    assert (failed["status"], failed["allowed_actions"], failed["error"]["message"]) == (
        "failed",
        ["reassign", "retry", "cancel"],
        "no",
    )
    assert (again.status_code, again.json()["status"], again.json()["attempts"]) == (200, "created", 0)
    assert engine.status(acme, one) == "done"
    problem(api("operator").post(of(one, "retry")), 409, "transition_refused")


def test_what_an_agent_is_at_work_on_can_be_cancelled(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    (one,) = engine.submit(acme)
    engine.drain()

    assert api("operator").post(of(one, "cancel")).json()["status"] == "cancelled"
    assert [run.status for run in engine.runs(acme, one)] == ["cancelled"]


@pytest.mark.parametrize("verb", ["approve", "reject", "start", "complete", "cancel", "retry"])
def test_a_change_is_offered_to_its_own_tenant_alone(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant, verb: str
) -> None:
    (waiting,) = gated(engine, acme)
    client = api(tenant=other_tenant)
    body = {"reject": {"notes": "x"}, "complete": {"output": {"content": "x"}}}.get(verb, {})

    problem(client.post(of(waiting, verb), body), 404, "not_found")
    problem(client.post(of(waiting, verb), body, headers={"If-Match": "*"}), 404, "not_found")
    problem(client.post(of(uuid4(), verb), body), 404, "not_found")
    assert engine.status(acme, waiting) == "awaiting_approval"


@pytest.mark.parametrize(
    ("verb", "too_low", "needed"),
    [
        ("approve", "viewer", "reviewer"), ("reject", "viewer", "reviewer"), ("start", "viewer", "reviewer"),
        ("complete", "viewer", "reviewer"), ("cancel", "reviewer", "operator"), ("retry", "reviewer", "operator"),
    ],
)  # fmt: skip
def test_each_change_names_the_role_that_it_needs(
    api: Any, engine: Engine, acme: Tenant, verb: str, too_low: str, needed: str
) -> None:
    task = a_task(api())

    assert problem(api(too_low).post(of(task, verb), {}), 403, "forbidden")["required_role"] == needed
    assert api(needed).post(of(task, verb), {}).status_code != 403


@pytest.mark.parametrize("verb", ["start", "complete", "cancel"])
def test_every_change_honours_if_match(api: Any, engine: Engine, acme: Tenant, verb: str) -> None:
    client, task = api(), a_task(api())

    problem(client.post(of(task, verb), {}, headers={"If-Match": '"9"'}), 412, "precondition_failed")

    changed = client.post(of(task, verb), {}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed["ETag"]) == (200, '"2"')
