"""Tasks of people, and actions of operators on activities, over the API."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest

from activities.decision_rules import Voter
from activities.human_tasks import decisions
from agents.contracts import Accepted, Completed
from agents.exceptions import PermanentAgentError
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.decisions_api.questions import INBOX, address_of, create_task, gates, submit_gated
from tests.open_questions import open_approval

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_task_can_be_claimed_and_completed_with_an_output(api: Any, engine: Engine, acme: Tenant) -> None:
    task = create_task(api("operator"))
    client = api("reviewer", name="Ann")

    started = client.post(address_of(task, "start")).json()
    done = client.post(
        address_of(task, "complete"),
        {"output": {"content": "Fine", "data": {"ok": True}, "content_type": "text/plain"}, "note": "Read."},
    )

    assert (started["status"], bool(started["started_at"]), started["allowed_actions"]) == (
        "in_progress",
        True,
        ["complete"],
    )
    assert (done.status_code, done.json()["status"], done.json()["decided_by"]) == (200, "done", "token:Ann")
    output = client.get(address_of(task, "output")).json()
    assert (output["content"], output["data"], output["content_type"]) == ("Fine", {"ok": True}, "text/plain")


def test_a_task_can_be_completed_at_once_and_without_an_output(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    task = create_task(api("operator"))

    assert api("reviewer").post(address_of(task, "complete")).json()["status"] == "done"
    refused = problem(api("reviewer", name="Bob").post(address_of(task, "complete")), 409, "already_decided")
    assert refused["detail"].startswith("token:reviewer of acme completed this at")
    problem(api("reviewer").post(address_of(task, "start")), 409, "transition_refused")


def test_everybody_sees_who_has_claimed_a_task_and_may_still_complete_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    task = create_task(api("operator"))
    ann, bob = api("reviewer", name="Ann"), api("reviewer", name="Bob")
    before = bob.get(address_of(task, "why")).json()["detail"]
    ann.post(address_of(task, "start"))

    (listed,) = bob.get(INBOX).json()["results"]
    why = bob.get(address_of(task, "why")).json()
    second_claim = problem(bob.post(address_of(task, "start")), 409, "transition_refused")
    done = bob.post(address_of(task, "complete"), {"note": "Ann is away."}).json()

    assert before == "It waits for somebody to claim it."
    assert why["code"] == listed["waiting_for"]["code"] == "human"
    assert why["detail"] == listed["waiting_for"]["detail"]
    assert re.fullmatch(r"token:Ann claimed it at 20.+ UTC\. Others can still answer it\.", why["detail"])
    assert re.match(r"token:Ann claimed this at 20.+Z\. You can still answer it", second_claim["detail"])
    assert (done["status"], done["decided_by"]) == ("done", "token:Bob")


def test_a_claimed_task_can_be_reassigned_and_is_unclaimed_then(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    task = create_task(api("operator"))
    api("reviewer", name="Ann").post(address_of(task, "start"))

    again = {"assignee_type": "human", "human_role": "editor", "reason": "Ann is away."}
    successor = api("operator").post(address_of(task, "reassign"), again).json()

    (listed,) = api("reviewer").get(INBOX).json()["results"]
    assert listed["id"] == successor["id"]
    assert (listed["status"], listed["waiting_for"]["detail"]) == (
        "created",
        "It waits for somebody to claim it.",
    )
    assert successor["metadata"]["reassign_reason"] == "Ann is away."


def test_a_first_vote_claims_nothing(api: Any, engine: Engine, acme: Tenant) -> None:
    approval = open_approval(acme, quorum=2, voters=3)
    decisions.approve(acme.pk, approval, actor=Voter("Ann", identity="user:Ann"))

    (listed,) = api("reviewer").get(INBOX).json()["results"]

    assert (listed["status"], listed["waiting_for"]["detail"]) == ("in_progress", "It waits for a decision.")


def test_a_gate_cannot_be_completed(api: Any, engine: Engine, acme: Tenant) -> None:
    submit_gated(engine, acme)
    (gate,) = gates(api())

    assert (
        "approve or reject"
        in problem(api().post(address_of(gate["id"], "complete")), 409, "transition_refused")["detail"]
    )


@in_one_test("verb", ["start", "complete"])
def test_the_work_of_an_agent_cannot_be_claimed_or_completed(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    (activity_id,) = engine.submit(acme)

    problem(api().post(address_of(activity_id, verb)), 409, "transition_refused")


@in_one_test(
    ("verb", "body", "path"),
    [
        ("start", {"x": 1}, "x"), ("complete", {"output": "text"}, "output"), ("complete", {"output": {"content": 1}}, "output.content"),
        ("complete", {"output": {"content_type": "t" * 101}}, "output.content_type"), ("complete", {"notes": "x"}, "notes"),
        ("cancel", {"reason": 5}, "reason"), ("cancel", {"why": "x"}, "why"), ("retry", {"x": 1}, "x"), ("approve", {"note": "x"}, "note"),
    ],
)  # fmt: skip
def test_unknown_or_malformed_fields_of_an_action_are_refused_with_their_path(
    api: Any, engine: Engine, acme: Tenant, verb: str, body: Any, path: str
) -> None:
    task = create_task(api())

    refused = problem(api().post(address_of(task, verb), body), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]


def test_cancelled_waiting_work_never_starts(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)

    cancelled = api("operator").post(address_of(activity_id, "cancel"), {"reason": "not needed"})
    engine.drain()

    assert (cancelled.status_code, cancelled.json()["status"], cancelled.json()["cancel_reason"]) == (
        200,
        "cancelled",
        "not needed",
    )
    assert engine.agent.calls == []
    problem(api("operator").post(address_of(activity_id, "cancel")), 409, "transition_refused")


def test_cancelling_work_at_its_gate_closes_the_gate(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)

    api("operator").post(address_of(waiting, "cancel"))

    assert gates(api()) == []


def test_a_gate_cannot_be_cancelled_alone(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)
    (gate,) = gates(api())

    refused = problem(api("operator").post(address_of(gate["id"], "cancel")), 409, "transition_refused")

    assert str(waiting) in refused["detail"]
    assert api("reviewer").post(address_of(waiting, "approve")).status_code == 200


def test_failed_work_can_be_retried_with_all_its_attempts(api: Any, engine: Engine, acme: Tenant) -> None:
    def broken(request: object) -> Completed:
        raise PermanentAgentError("no")

    answer, engine.agent.behaviour = engine.agent.behaviour, broken
    (activity_id,) = engine.submit(acme)
    engine.drain()
    engine.agent.behaviour = answer

    failed = api().get(address_of(activity_id)).json()
    response = api("operator").post(address_of(activity_id, "retry"))
    engine.drain()

    assert (failed["status"], failed["allowed_actions"], failed["error"]["message"]) == (
        "failed",
        ["reassign", "retry", "cancel"],
        "no",
    )
    again = response.json()
    assert (response.status_code, again["status"], again["attempts"], again["finished_at"]) == (
        200,
        "created",
        0,
        None,
    )
    assert engine.status(acme, activity_id) == "done"
    problem(api("operator").post(address_of(activity_id, "retry")), 409, "transition_refused")


def test_running_work_can_be_cancelled(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert api("operator").post(address_of(activity_id, "cancel")).json()["status"] == "cancelled"
    assert [run.status for run in engine.runs(acme, activity_id)] == ["cancelled"]


@in_one_test("verb", ["approve", "reject", "start", "complete", "cancel", "retry"])
def test_actions_on_work_of_another_tenant_are_not_found(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant, verb: str
) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api(tenant=other_tenant)
    body = {"reject": {"notes": "x"}, "complete": {"output": {"content": "x"}}}.get(verb, {})

    problem(client.post(address_of(waiting, verb), body), 404, "not_found")
    problem(client.post(address_of(waiting, verb), body, headers={"If-Match": "*"}), 404, "not_found")
    problem(client.post(address_of(uuid4(), verb), body), 404, "not_found")
    assert engine.status(acme, waiting) == "awaiting_approval"


@pytest.mark.parametrize(
    ("verb", "too_low", "needed"),
    [
        ("approve", "viewer", "reviewer"), ("reject", "viewer", "reviewer"), ("start", "viewer", "reviewer"),
        ("complete", "viewer", "reviewer"), ("cancel", "reviewer", "operator"), ("retry", "reviewer", "operator"),
    ],
)  # fmt: skip
def test_each_action_names_the_role_that_it_needs(
    api: Any, engine: Engine, acme: Tenant, verb: str, too_low: str, needed: str
) -> None:
    task = create_task(api())

    assert problem(api(too_low).post(address_of(task, verb), {}), 403, "forbidden")["required_role"] == needed
    assert api(needed).post(address_of(task, verb), {}).status_code != 403


@pytest.mark.parametrize("verb", ["start", "complete", "cancel"])
def test_every_action_honours_if_match(api: Any, engine: Engine, acme: Tenant, verb: str) -> None:
    client, task = api(), create_task(api())

    problem(client.post(address_of(task, verb), {}, headers={"If-Match": '"9"'}), 412, "precondition_failed")

    changed = client.post(address_of(task, verb), {}, headers={"If-Match": '"1"'})
    assert (changed.status_code, version_of(changed)) == (200, "2")
