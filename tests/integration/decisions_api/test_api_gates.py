"""Gates are decided over the API: once, by people, about what they have seen."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.integration.decisions_api.questions import ACTIVITIES, gated, gates, of
from tests.integration.test_api_access import problem

pytestmark = pytest.mark.usefixtures("one_at_a_time")


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
