"""What people and operators do with activities: decide, take up, complete, cancel, try again; and the inbox they work from."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from agents.contracts import Accepted, Completed
from agents.exceptions import PermanentAgentError
from tenants.context import tenant_scope
from tenants.models import Membership, Tenant
from tests.engine import Engine, at_once
from tests.integration.test_api_door import problem

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ACTIVITIES, INBOX, DECIDE = "/api/v1/activities/", "/api/v1/inbox/", "/api/v1/inbox/decide/"


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    return tenant


def gated(engine: Engine, acme: Tenant, count: int = 1) -> list[UUID]:
    """Activities whose results wait for an approval."""
    waiting = engine.submit(acme, "qa", count, requires_approval=True)
    engine.drain()
    return waiting


def gates(client: APIClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{INBOX}?gate=true&ordering=created_at").json()["results"]
    return found


def of(activity_id: Any, verb: str = "") -> str:
    return f"{ACTIVITIES}{activity_id}/{verb + '/' if verb else ''}"


def a_task(client: APIClient, **members: Any) -> str:
    made: str = client.post(ACTIVITIES, {"name": "Read it", "human_role": "editor", **members}).json()["id"]
    return made


# Gates


def test_what_waits_for_an_approval_is_in_the_inbox_with_what_it_is_about(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = gated(engine, acme)

    (gate,) = gates(api("viewer"))

    assert (gate["kind"], gate["is_approval_gate"], gate["human_role"], gate["parent"]) == (
        "gate",
        True,
        "reviewer",
        str(waiting),
    )
    assert gate["subject"]["status"] == "awaiting_approval"
    assert gate["subject"]["output_ref"] == gate["input_ref"]
    assert gate["allowed_actions"] == ["start", "approve", "reject"]
    assert gate["waiting_for"]["code"] == "human"


@pytest.mark.parametrize("asked", ["gate", "waiting"])
def test_an_approval_settles_the_gate_and_what_waits_behind_it(
    api: Any, engine: Engine, acme: Tenant, asked: str
) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer", name="Ann")
    (gate,) = gates(client)

    approved = client.post(
        of(gate["id"] if asked == "gate" else waiting, "approve"), {"notes": "good", "chosen_option": "b"}
    )

    assert approved.status_code == 200
    shown = approved.json()
    assert (shown["status"], shown["decided_by"], shown["reviewer_notes"], shown["chosen_option"]) == (
        "approved",
        "token:Ann",
        "good",
        "b",
    )
    assert shown["decided_at"]
    assert engine.status(acme, waiting) == engine.status(acme, UUID(gate["id"])) == "approved"
    assert gates(client) == []


def test_an_approval_needs_no_body(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = gated(engine, acme)

    assert api("reviewer").post(of(waiting, "approve")).status_code == 200


def test_a_rejection_sends_the_work_back_with_the_notes(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer")

    rejected = client.post(of(waiting, "reject"), {"notes": "Shorter."})

    assert (rejected.status_code, rejected.json()["status"]) == (200, "rejected")
    (revision,) = client.get(f"{ACTIVITIES}?parent={waiting}&agent_role=qa").json()["results"]
    assert (revision["link_kind"], revision["round"], revision["reviewer_notes"]) == (
        "revision_of",
        2,
        "Shorter.",
    )


@pytest.mark.parametrize("body", [{}, {"notes": ""}, {"notes": "  "}, {"notes": None}, {"notes": 5}])
def test_a_rejection_without_notes_is_refused_at_their_path(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any]
) -> None:
    (waiting,) = gated(engine, acme)

    refused = problem(api("reviewer").post(of(waiting, "reject"), body), 400, "validation_failed")

    assert [fault["path"] for fault in refused["errors"]] == ["notes"]
    assert engine.status(acme, waiting) == "awaiting_approval"


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_decision_that_comes_too_late_names_the_one_that_counts(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    (waiting,) = gated(engine, acme)
    first = api("reviewer", name="Ann").post(of(waiting, "approve")).json()

    refused = problem(
        api("reviewer", name="Bob").post(of(waiting, verb), {"notes": "no"}), 409, "already_decided"
    )

    assert (refused["decided_by"], refused["decision"], refused["decided_at"]) == (
        "token:Ann",
        "approved",
        first["decided_at"],
    )
    assert "token:Ann approved this at" in refused["detail"]


def test_of_many_contrary_decisions_at_once_one_counts_and_the_others_learn_which(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = gated(engine, acme)
    clients = [(api("reviewer", name=f"r{number}"), ["approve", "reject"][number % 2]) for number in range(8)]

    answers = at_once(
        *[lambda c=client, v=verb: c.post(of(waiting, v), {"notes": "x"}) for client, verb in clients]
    )

    won = [answer for answer in answers if answer.status_code == 200]
    assert len(won) == 1
    assert {answer.json()["decided_by"] for answer in answers if answer.status_code == 409} == {
        won[0].json()["decided_by"]
    }


def test_nothing_to_decide_is_409_and_says_what_is(api: Any, engine: Engine, acme: Tenant) -> None:
    (running,) = engine.submit(acme)

    refused = problem(api("reviewer").post(of(running, "approve")), 409, "transition_refused")

    assert "created" in refused["detail"]


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_decision_about_what_has_changed_since_is_412_and_does_nothing(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer")
    (gate,) = gates(client)
    seen = client.get(of(gate["id"]))["ETag"]
    client.post(of(gate["id"], "start"))

    problem(
        client.post(of(gate["id"], verb), {"notes": "x"}, headers={"If-Match": seen}),
        412,
        "precondition_failed",
    )

    assert engine.status(acme, waiting) == "awaiting_approval"
    now = client.get(of(gate["id"]))["ETag"]
    assert client.post(of(gate["id"], verb), {"notes": "x"}, headers={"If-Match": now}).status_code == 200


# Tasks


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


@pytest.mark.parametrize(
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


# Operators


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


# The inbox


def test_the_inbox_holds_what_is_open_the_most_urgent_first(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    low, high, done = a_task(client, priority=20), a_task(client, priority=1), a_task(client)
    client.post(of(done, "complete"))
    client.post(of(low, "start"))
    gated(engine, acme)

    items = api("viewer").get(INBOX).json()["results"]

    assert [item["id"] for item in items][:: len(items) - 1] == [high, low]
    assert [item["kind"] for item in items] == ["task", "gate", "task"]


def test_the_inbox_can_be_narrowed(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    editors, lawyers = a_task(client), a_task(client, human_role="lawyer", name="Contract")

    def found(**query: Any) -> list[str]:
        return [item["id"] for item in client.get(INBOX, query).json()["results"]]

    assert found(human_role="lawyer") == [lawyers] == found(search="contract")
    assert found(gate="true") == []
    assert set(found(mine="true")) == {editors, lawyers}
    problem(client.get(f"{INBOX}?status=done"), 400, "validation_failed")


def test_a_person_may_ask_for_what_is_theirs(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    editors, _ = a_task(client), a_task(client, human_role="lawyer")
    user = User.objects.create_user("ann")
    with tenant_scope(acme.pk):
        Membership.objects.create(tenant=acme, user=user, role="reviewer", human_roles=["editor"])
    ann = APIClient()
    ann.force_login(user)

    assert [item["id"] for item in ann.get(f"{INBOX}?mine=true").json()["results"]] == [editors]
    assert len(ann.get(INBOX).json()["results"]) == 2


def test_many_gates_are_decided_in_one_call_each_with_its_result(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    waiting = gated(engine, acme, 4)
    client = api("reviewer", name="Ann")
    first, second, third, _ = gates(client)
    client.post(of(third["id"], "approve"))
    items = [
        {"id": first["id"], "decision": "approved", "notes": "good"},
        {"id": second["id"], "decision": "rejected", "notes": "Shorter."},
        {"id": third["id"], "decision": "rejected", "notes": "late"},
        {"id": str(uuid4()), "decision": "approved"},
        {"id": str(waiting[3]), "decision": "approve"},
    ]

    answer = client.post(DECIDE, {"items": items})

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [result["id"] for result in results] == [item["id"] for item in items]
    assert [result["ok"] for result in results] == [True, True, False, False, True]
    assert [result["status"] for result in results] == ["approved", "rejected", "approved", None, "approved"]
    assert (results[2]["problem"]["code"], results[2]["problem"]["decided_by"]) == (
        "already_decided",
        "token:Ann",
    )
    assert results[3]["problem"]["code"] == "not_found"
    assert gates(client) == []


def test_a_hundred_decisions_fit_into_one_call(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=100)
    gated(engine, acme, 100)
    client = api("reviewer")
    items = [
        {"id": gate["id"], "decision": "approved"}
        for gate in client.get(f"{INBOX}?limit=200").json()["results"]
    ]

    results = client.post(DECIDE, {"items": items}).json()["results"]

    assert [result["ok"] for result in results] == [True] * 100


def test_bulk_decisions_about_the_same_gates_at_once_leave_one_decision_each(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    gated(engine, acme, 6)
    items = [{"id": gate["id"], "decision": "approved"} for gate in gates(api())]
    clients = [api("reviewer", name=f"r{number}") for number in range(3)]

    answers = at_once(
        *[
            lambda c=client, s=turn: c.post(DECIDE, {"items": items[:: -1 if s % 2 else 1]})
            for turn, client in enumerate(clients)
        ]
    )

    assert [answer.status_code for answer in answers] == [200] * 3
    won = [result["id"] for answer in answers for result in answer.json()["results"] if result["ok"]]
    assert sorted(won) == sorted(item["id"] for item in items)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "items"), ({"items": []}, "items"), ({"items": [{"decision": "approved"}]}, "items[0].id"),
        ({"items": [{"id": str(UUID(int=1)), "decision": "maybe"}]}, "items[0].decision"),
        ({"items": [{"id": str(UUID(int=1)), "decision": "rejected"}]}, "items[0].notes"),
        ({"items": [{"id": str(UUID(int=1)), "decision": "approved", "x": 1}]}, "items[0].x"), ({"items": 5}, "items"),
    ],
)  # fmt: skip
def test_a_bulk_decision_that_is_none_is_refused_by_path(
    api: Any, engine: Engine, acme: Tenant, body: Any, path: str
) -> None:
    refused = problem(api("reviewer").post(DECIDE, body), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]


def test_the_inbox_of_another_tenant_is_empty_and_its_gates_are_not_there(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer", tenant=other_tenant)

    (result,) = client.post(DECIDE, {"items": [{"id": str(waiting), "decision": "approved"}]}).json()[
        "results"
    ]

    assert client.get(INBOX).json()["results"] == []
    assert (result["ok"], result["problem"]["code"]) == (False, "not_found")
    assert engine.status(acme, waiting) == "awaiting_approval"


def test_deciding_needs_a_reviewer(api: Any, engine: Engine, acme: Tenant) -> None:
    assert problem(api("viewer").post(DECIDE, {"items": []}), 403, "forbidden")["required_role"] == "reviewer"
