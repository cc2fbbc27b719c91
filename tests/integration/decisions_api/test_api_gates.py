"""Decisions about gates over the API: each gate is decided once, in the version that was read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from activities.models import Activity
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine, simultaneously
from tests.integration.decisions_api.questions import ACTIVITIES, address_of, gates, submit_gated

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_gate_is_in_the_inbox_with_the_work_that_it_is_about(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = submit_gated(engine, acme)

    (gate,) = gates(api("reviewer"))

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


@pytest.mark.parametrize("target", ["gate", "waiting"])
def test_an_approval_settles_the_gate_and_its_work(
    api: Any, engine: Engine, acme: Tenant, target: str
) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer", name="Ann")
    (gate,) = gates(client)

    approved = client.post(
        address_of(gate["id"] if target == "gate" else waiting, "approve"),
        {"notes": "good", "chosen_option": "b"},
    )

    assert approved.status_code == 200
    activity = approved.json()
    assert (
        activity["status"],
        activity["decided_by"],
        activity["reviewer_notes"],
        activity["chosen_option"],
    ) == (
        "approved",
        "token:Ann",
        "good",
        "b",
    )
    assert activity["decided_at"]
    assert engine.status(acme, waiting) == engine.status(acme, UUID(gate["id"])) == "approved"
    assert gates(client) == []


def test_a_dedup_key_moves_to_the_revision(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = engine.submit(acme, requires_approval=True, dedup_key="once")
    engine.drain()
    client = api("operator")

    assert client.post(address_of(waiting, "reject"), {"notes": "Shorter."}).status_code == 200

    repeated = client.post(ACTIVITIES, {"name": "again", "agent_role": "qa", "dedup_key": "once"})
    assert (repeated.status_code, repeated.json()["parent"], repeated.json()["round"]) == (
        200,
        str(waiting),
        2,
    )


def test_an_approval_needs_no_body(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)

    assert api("reviewer").post(address_of(waiting, "approve")).status_code == 200


def test_a_rejection_creates_a_revision_with_the_notes(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer")

    rejected = client.post(address_of(waiting, "reject"), {"notes": "Shorter."})

    assert (rejected.status_code, rejected.json()["status"]) == (200, "rejected")
    assert (rejected.json()["reviewer_notes"], rejected.json()["decided_by"]) == (
        "Shorter.", "token:reviewer of acme",
    )  # fmt: skip
    assert rejected.json()["decided_at"]
    (revision,) = client.get(f"{ACTIVITIES}?parent={waiting}&agent_role=qa").json()["results"]
    assert (revision["link_kind"], revision["round"], revision["reviewer_notes"]) == (
        "revision_of",
        2,
        "Shorter.",
    )


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_revision_keeps_the_expiry_of_its_work_until_that_has_passed(
    api: Any, engine: Engine, acme: Tenant, is_ahead: bool
) -> None:
    (waiting,) = submit_gated(engine, acme)
    expires_at = clock.now() + timedelta(days=1 if is_ahead else -1)
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=waiting).update(expires_at=expires_at)

    api("reviewer").post(address_of(waiting, "reject"), {"notes": "Shorter."})

    with tenant_scope(acme.pk):
        revision = Activity.objects.get(parent_id=waiting, link_kind="revision_of")
    assert revision.expires_at == (expires_at if is_ahead else None)


@in_one_test("body", [{}, {"notes": ""}, {"notes": "  "}, {"notes": None}, {"notes": 5}])
def test_a_rejection_without_notes_is_refused_at_their_path(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any]
) -> None:
    (waiting,) = submit_gated(engine, acme)

    refused = problem(api("reviewer").post(address_of(waiting, "reject"), body), 400, "validation_failed")

    assert [fault["path"] for fault in refused["errors"]] == ["notes"]
    assert engine.status(acme, waiting) == "awaiting_approval"


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_late_decision_learns_who_decided_first_and_how(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    (waiting,) = submit_gated(engine, acme)
    first = api("reviewer", name="Ann").post(address_of(waiting, "approve")).json()

    refused = problem(
        api("reviewer", name="Bob").post(address_of(waiting, verb), {"notes": "no"}), 409, "already_decided"
    )

    assert (refused["decided_by"], refused["decision"], refused["decided_at"]) == (
        "token:Ann",
        "approved",
        first["decided_at"],
    )
    assert "token:Ann approved this at" in refused["detail"]


def test_one_of_many_concurrent_decisions_counts_and_the_others_name_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = submit_gated(engine, acme)
    clients = [(api("reviewer", name=f"r{number}"), ["approve", "reject"][number % 2]) for number in range(8)]

    answers = simultaneously(
        *[lambda c=client, v=verb: c.post(address_of(waiting, v), {"notes": "x"}) for client, verb in clients]
    )

    successes = [answer for answer in answers if answer.status_code == 200]
    assert len(successes) == 1
    assert {answer.json()["decided_by"] for answer in answers if answer.status_code == 409} == {
        successes[0].json()["decided_by"]
    }


def test_a_decision_without_a_gate_is_409_and_names_the_status(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (running,) = engine.submit(acme)

    refused = problem(api("reviewer").post(address_of(running, "approve")), 409, "transition_refused")

    assert "created" in refused["detail"]


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_decision_with_an_old_version_is_412_and_changes_nothing(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer")
    (gate,) = gates(client)
    old_version = client.get(address_of(gate["id"]))["ETag"]
    client.post(address_of(gate["id"], "start"))

    problem(
        client.post(address_of(gate["id"], verb), {"notes": "x"}, headers={"If-Match": old_version}),
        412,
        "precondition_failed",
    )

    assert engine.status(acme, waiting) == "awaiting_approval"
    current_version = client.get(address_of(gate["id"]))["ETag"]
    assert (
        client.post(
            address_of(gate["id"], verb), {"notes": "x"}, headers={"If-Match": current_version}
        ).status_code
        == 200
    )
