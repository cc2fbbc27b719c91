"""The inbox over the API: open items, filters and bulk decisions."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connections
from rest_framework.test import APIClient

from tenants.context import tenant_scope
from tenants.models import Membership, Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine, simultaneously
from tests.integration.decisions_api.questions import (
    DECIDE,
    INBOX,
    address_of,
    create_task,
    gates,
    submit_gated,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_the_inbox_lists_open_items_by_urgency(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    low, high, done = create_task(client, priority=20), create_task(client, priority=1), create_task(client)
    client.post(address_of(done, "complete"))
    client.post(address_of(low, "start"))
    submit_gated(engine, acme)

    items = api("viewer").get(INBOX).json()["results"]

    assert [item["id"] for item in items][:: len(items) - 1] == [high, low]
    assert [item["kind"] for item in items] == ["task", "gate", "task"]


def test_the_inbox_can_be_filtered(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    editors, lawyers = create_task(client), create_task(client, human_role="lawyer", name="Contract")

    def ids(**query: Any) -> list[str]:
        return [item["id"] for item in client.get(INBOX, query).json()["results"]]

    assert ids(human_role="lawyer") == [lawyers] == ids(search="contract")
    assert ids(gate="true") == []
    assert set(ids(mine="true")) == {editors, lawyers}
    problem(client.get(f"{INBOX}?status=done"), 400, "validation_failed")


def test_a_person_can_list_the_items_of_their_roles_and_of_reviewers_in_general(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api()
    editors, _ = create_task(client), create_task(client, human_role="lawyer")
    submit_gated(engine, acme)
    (gate,) = gates(client)
    user = User.objects.create_user("ann")
    with tenant_scope(acme.pk):
        Membership.objects.create(tenant=acme, user=user, role="reviewer", human_roles=["editor"])
    ann = APIClient()
    ann.force_login(user)

    assert {item["id"] for item in ann.get(f"{INBOX}?mine=true").json()["results"]} == {editors, gate["id"]}
    assert len(ann.get(INBOX).json()["results"]) == 3


def test_one_call_decides_many_gates_with_a_result_each(api: Any, engine: Engine, acme: Tenant) -> None:
    waiting = submit_gated(engine, acme, 4)
    client = api("reviewer", name="Ann")
    first, second, third, _ = gates(client)
    client.post(address_of(third["id"], "approve"))
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
    submit_gated(engine, acme, 100)
    client = api("reviewer")
    items = [
        {"id": gate["id"], "decision": "approved"}
        for gate in client.get(f"{INBOX}?limit=200").json()["results"]
    ]

    results = client.post(DECIDE, {"items": items}).json()["results"]

    assert [result["ok"] for result in results] == [True] * 100


def test_an_item_that_is_named_again_and_again_in_one_call_costs_one_refusal(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    submit_gated(engine, acme)
    client = api("reviewer")
    (gate,) = gates(client)
    statements = []

    def count(execute: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return execute(sql, *rest)

    def decide(times: int, item_id: str) -> Any:
        statements.clear()
        with connections["default"].execute_wrapper(count):
            return client.post(DECIDE, {"items": [{"id": item_id, "decision": "approved"}] * times})

    results = decide(50, gate["id"]).json()["results"]
    again, needed = decide(2, gate["id"]).json()["results"], len(statements)
    decide(50, gate["id"])

    assert [result["ok"] for result in results] == [True] + [False] * 49
    assert {result["problem"]["code"] for result in [*results[1:], *again]} == {"already_decided"}
    assert len(statements) == needed
    assert {each["problem"]["code"] for each in decide(3, str(uuid4())).json()["results"]} == {"not_found"}


def test_concurrent_bulk_decisions_decide_each_gate_once(api: Any, engine: Engine, acme: Tenant) -> None:
    submit_gated(engine, acme, 6)
    items = [{"id": gate["id"], "decision": "approved"} for gate in gates(api())]
    clients = [api("reviewer", name=f"r{number}") for number in range(3)]

    answers = simultaneously(
        *[
            lambda c=client, s=turn: c.post(DECIDE, {"items": items[:: -1 if s % 2 else 1]})
            for turn, client in enumerate(clients)
        ]
    )

    assert [answer.status_code for answer in answers] == [200] * 3
    decided = [result["id"] for answer in answers for result in answer.json()["results"] if result["ok"]]
    assert sorted(decided) == sorted(item["id"] for item in items)


@in_one_test(
    ("body", "path"),
    [
        ({}, "items"), ({"items": []}, "items"), ({"items": [{"decision": "approved"}]}, "items[0].id"),
        ({"items": [{"id": str(UUID(int=1)), "decision": "maybe"}]}, "items[0].decision"),
        ({"items": [{"id": "x", "y": 1}]}, "items[0].y"),
        ({"items": [{"id": str(UUID(int=1)), "decision": "rejected"}]}, "items[0].notes"),
        ({"items": [{"id": str(UUID(int=1)), "decision": "done", "chosen_option": "a"}]}, "items[0].chosen_option"),
        ({"items": [{"id": str(UUID(int=1)), "decision": "approved", "x": 1}]}, "items[0].x"), ({"items": 5}, "items"),
    ],
)  # fmt: skip
def test_a_malformed_bulk_decision_is_refused_with_its_path(
    api: Any, engine: Engine, acme: Tenant, body: Any, path: str
) -> None:
    refused = problem(api("reviewer").post(DECIDE, body), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]


def test_another_tenant_cannot_see_or_decide_a_gate(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer", tenant=other_tenant)

    (result,) = client.post(DECIDE, {"items": [{"id": str(waiting), "decision": "approved"}]}).json()[
        "results"
    ]

    assert client.get(INBOX).json()["results"] == []
    assert (result["ok"], result["problem"]["code"]) == (False, "not_found")
    assert engine.status(acme, waiting) == "awaiting_approval"


def test_deciding_needs_a_reviewer(api: Any, engine: Engine, acme: Tenant) -> None:
    assert problem(api("viewer").post(DECIDE, {"items": []}), 403, "forbidden")["required_role"] == "reviewer"
