"""Approvals over the API: shown, decided, taken back, by those who may."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections

from activities.models import ActivityEvent
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.approvals_api.addresses import APPROVALS, INBOX
from tests.integration.test_api_access import problem
from tests.open_questions import links_of

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_at_a_time")]
QUESTION = {"type": "brand_direction", "title": "Which brand?"}


def asked(client: Any, *activities: UUID, **members: Any) -> dict[str, Any]:
    body = {**QUESTION, "activity_ids": [str(one) for one in activities], **members}
    answer = client.post(APPROVALS, body)
    assert answer.status_code == 201, answer.json()
    found: dict[str, Any] = answer.json()
    return found


def of(approval: dict[str, Any], verb: str = "") -> str:
    return f"{APPROVALS}{approval['id']}/{verb + '/' if verb else ''}"


def test_an_approval_shows_the_question_and_what_hangs_on_it(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)

    made = api("operator", name="Ops").post(
        APPROVALS,
        {
            **QUESTION, "description": "Pick one.", "options": ["a", "b"], "activity_ids": [str(activity_id)],
            "human_role": "editor", "due_seconds": 60, "on_timeout": "approve", "quorum": 2, "voters": 3,
        },
    )  # fmt: skip
    shown = made.json()

    assert (made.status_code, made["Location"]) == (201, f"{APPROVALS}{shown['id']}/")
    assert {name: shown[name] for name in ("type", "title", "description", "options", "status", "human_role")} == {
        "type": "brand_direction", "title": "Which brand?", "description": "Pick one.", "options": ["a", "b"],
        "status": "pending", "human_role": "editor",
    }  # fmt: skip
    assert (shown["requested_by"], shown["quorum"], shown["voters"], shown["votes"]) == (
        "token:Ops",
        2,
        3,
        [],
    )
    assert (shown["on_timeout"], shown["self_approval"], shown["decided_by"], shown["notes"]) == (
        "approve", False, None, None
    )  # fmt: skip
    assert shown["due_at"]
    (link,) = shown["links"]
    assert (link["activity"], link["name"], link["status"], link["state"], link["reason"]) == (
        str(activity_id), "work 0", "awaiting_review", "waiting", ""
    )  # fmt: skip
    seen = api("viewer").get(made["Location"])
    assert (seen.json(), seen["ETag"]) == (shown, f'"{shown["version"]}"')


def test_a_decision_answers_with_what_it_woke_and_what_it_skipped(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    first, second = engine.submit(acme, count=2)
    approval = asked(api("operator"), first, second, options=["a", "b"])
    api("operator").post(f"/api/v1/activities/{second}/cancel/")

    decided = api("reviewer", name="Ann").post(
        of(approval, "decide"), {"decision": "approved", "notes": "Good.", "chosen_option": "a"}
    )

    body = decided.json()
    assert (decided.status_code, body["status"], body["decided_by"]) == (200, "approved", "token:Ann")
    assert (body["chosen_option"], body["notes"]) == ("a", "Good.")
    assert (body["woken"], body["skipped"]) == ([str(first)], [str(second)])
    late = problem(
        api("reviewer", name="Bob").post(of(approval, "decide"), {"decision": "rejected"}),
        409,
        "already_decided",
    )
    assert (late["decided_by"], late["decision"], late["decided_at"]) == (
        "token:Ann",
        "approved",
        body["decided_at"],
    )


@pytest.mark.parametrize("way", ["decide", "approve", "inbox"])
def test_who_approves_must_choose_where_options_are_offered(
    api: Any, engine: Engine, acme: Tenant, way: str
) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(api("operator"), activity_id, options=["calm", "loud"])
    client = api("reviewer", name="Ann")

    if way == "decide":
        refused = problem(
            client.post(of(approval, "decide"), {"decision": "approved"}), 400, "validation_failed"
        )
    elif way == "approve":
        address = f"/api/v1/activities/{approval['id']}/approve/"
        refused = problem(client.post(address), 400, "validation_failed")
    else:
        body = {"items": [{"id": approval["id"], "decision": "approved"}]}
        refused = client.post(f"{INBOX}decide/", body).json()["results"][0]["problem"]

    assert refused["errors"] == [
        {"path": "chosen_option", "message": "must be one of the options: 'calm', 'loud'"}
    ]
    assert client.get(of(approval)).json()["status"] == "pending"
    assert engine.status(acme, activity_id) == "awaiting_review"


@pytest.mark.parametrize("way", ["decide", "approve", "inbox"])
def test_every_way_to_decide_does_the_same(api: Any, engine: Engine, acme: Tenant, way: str) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(api("operator"), activity_id)
    client = api("reviewer", name="Ann")

    if way == "decide":
        client.post(of(approval, "decide"), {"decision": "approved", "notes": "ok"})
    elif way == "approve":
        client.post(f"/api/v1/activities/{approval['id']}/approve/", {"notes": "ok"})
    else:
        item = {"id": approval["id"], "decision": "approved", "notes": "ok"}
        client.post(f"{INBOX}decide/", {"items": [item]})

    seen = client.get(of(approval)).json()
    assert (seen["status"], seen["decided_by"], seen["notes"]) == ("approved", "token:Ann", "ok")
    assert links_of(acme, UUID(approval["id"])) == {activity_id: ("woken", "")}


def test_one_voice_of_several_leaves_it_pending_and_is_shown(api: Any, engine: Engine, acme: Tenant) -> None:
    asker, ann = api("operator", name="Asker"), api("reviewer", name="Ann", person="Ann")
    approval = asked(asker, quorum=2, voters=3)

    first = ann.post(of(approval, "decide"), {"decision": "approved", "notes": "yes"})

    assert (first.status_code, first.json()["status"]) == (200, "pending")
    (vote,) = first.json()["votes"]
    assert (vote["by"], vote["decision"], vote["notes"]) == ("token:Ann", "approved", "yes")
    again = problem(ann.post(of(approval, "decide"), {"decision": "rejected"}), 409, "already_voted")
    assert (again["decided_by"], again["decision"]) == ("token:Ann", "approve")
    problem(asker.post(of(approval, "decide"), {"decision": "approved"}), 403, "forbidden")
    last = api("reviewer", person="Bob").post(of(approval, "decide"), {"decision": "approved"})
    assert last.json()["status"] == "approved"


def test_a_decision_is_bound_to_what_was_shown_votes_included(api: Any, engine: Engine, acme: Tenant) -> None:
    approval = asked(api("operator"), quorum=3)
    api("reviewer", person="a").post(of(approval, "decide"), {"decision": "approved"})
    seen = api("reviewer").get(of(approval))["ETag"]
    api("reviewer", person="b").post(of(approval, "decide"), {"decision": "approved"})

    third = api("reviewer", person="c")
    stale = third.post(of(approval, "decide"), {"decision": "approved"}, headers={"If-Match": seen})

    problem(stale, 412, "precondition_failed")
    now = third.get(of(approval))["ETag"]
    fresh = third.post(of(approval, "decide"), {"decision": "approved"}, headers={"If-Match": now})
    assert fresh.json()["status"] == "approved"


def test_who_asked_or_an_operator_takes_it_back(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(api("operator", name="Ops"), activity_id)

    problem(api("reviewer").post(of(approval, "withdraw")), 403, "forbidden")
    taken = api("operator").post(of(approval, "withdraw"), {"reason": "not needed"}).json()

    assert (taken["status"], taken["notes"], taken["woken"]) == (
        "withdrawn",
        "not needed",
        [str(activity_id)],
    )
    late = problem(
        api("reviewer").post(of(approval, "decide"), {"decision": "approved"}), 409, "already_decided"
    )
    assert late["decision"] == "withdrawn"


def test_unknown_and_foreign_activities_are_refused_by_their_place(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    (own,), (foreign,) = engine.submit(acme), engine.submit(other_tenant)
    body = {**QUESTION, "activity_ids": [str(own), str(foreign), str(uuid4())]}

    refused = problem(api("operator").post(APPROVALS, body), 400, "validation_failed")

    assert [fault["path"] for fault in refused["errors"]] == ["activity_ids[1]", "activity_ids[2]"]
    assert api().get(APPROVALS).json()["results"] == []
    assert (engine.status(acme, own), engine.status(other_tenant, foreign)) == ("created", "created")


@in_one_test(
    ("members", "path"),
    [
        ({"title": None}, "title"), ({"options": ["a", "a"]}, "options"), ({"quorum": 0}, "quorum"),
        ({"quorum": 3, "voters": 2}, "voters"), ({"on_timeout": "approve"}, "on_timeout"),
        ({"due_seconds": 9, "reminders": [9]}, "reminders"), ({"reminders": [5, 5]}, "reminders"),
        ({"escalation": [{"after_seconds": 5}]}, "escalation"), ({"unknown": 1}, "unknown"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_question_is_named_by_its_path(
    api: Any, engine: Engine, acme: Tenant, members: Any, path: str
) -> None:
    refused = problem(api("operator").post(APPROVALS, {**QUESTION, **members}), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]


def test_the_list_is_narrowed_by_type_status_role_and_activity(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    client = api("operator")
    about = asked(client, activity_id, type="content_direction")
    for_editor = asked(client, human_role="editor")
    decided = asked(client)
    client.post(of(decided, "decide"), {"decision": "rejected", "notes": "no"})

    def found(query: str) -> list[str]:
        return [one["id"] for one in client.get(f"{APPROVALS}?{query}").json()["results"]]

    assert found("") == [decided["id"], for_editor["id"], about["id"]]
    assert found("type=content_direction") == found(f"activity={activity_id}") == [about["id"]]
    assert found("human_role=editor") == [for_editor["id"]]
    assert (found("status=rejected"), found("status=pending")) == (
        [decided["id"]],
        [for_editor["id"], about["id"]],
    )
    problem(client.get(f"{APPROVALS}?statuz=pending"), 400, "validation_failed")


@pytest.mark.parametrize(("role", "verb"), [("viewer", "decide"), ("viewer", "withdraw"), ("reviewer", "")])
def test_each_role_may_do_what_is_its_own(
    api: Any, engine: Engine, acme: Tenant, role: str, verb: str
) -> None:
    approval = asked(api("operator"))

    if verb:
        body: Any = {"decision": "approved"} if verb == "decide" else {}
        problem(api(role).post(of(approval, verb), body), 403, "forbidden")
    else:
        problem(api(role).post(APPROVALS, QUESTION), 403, "forbidden")


def test_an_activity_that_is_no_approval_is_none_here(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, requires_approval=True)
    engine.drain()
    (gate,) = api().get(f"{INBOX}?gate=true").json()["results"]

    problem(api().post(f"{APPROVALS}{gate['id']}/decide/", {"decision": "approved"}), 404, "not_found")

    assert engine.status(acme, UUID(gate["id"])) == "created"


def test_many_gets_on_every_link_change_nothing(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(api("operator"), activity_id, due_seconds=60, on_timeout="approve")
    client = api("admin")
    links = [of(approval), approval["links"][0]["link"], APPROVALS, INBOX]
    links += [
        of(approval, "decide"),
        of(approval, "withdraw"),
        f"/api/v1/activities/{approval['id']}/approve/",
    ]

    def state() -> Any:
        with tenant_scope(acme.pk):
            history = list(
                ActivityEvent.objects.order_by("activity_id", "seq").values_list("activity_id", "verb")
            )
        return history, links_of(acme, UUID(approval["id"])), engine.status(acme, activity_id)

    before, written = state(), []

    def note_writes(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if any(
            word in sql.upper()
            for word in ("INSERT INTO ACTIVITIES", "UPDATE ACTIVITIES", "DELETE FROM ACTIVITIES")
        ):
            written.append(sql)
        return execute(sql, params, many, context)

    with connections[APP].execute_wrapper(note_writes):
        answers = {client.get(link).status_code for _ in range(15) for link in links}

    assert answers <= {200, 405}
    assert written == []
    assert state() == before


def test_a_hundred_items_are_decided_in_one_call_with_a_result_each(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    gates = engine.submit(acme, count=98, requires_approval=True)
    engine.drain()
    approval = asked(api("operator"))
    items = [{"id": str(one), "decision": "approved"} for one in gates]
    items += [
        {"id": approval["id"], "decision": "rejected", "notes": "no"},
        {"id": str(uuid4()), "decision": "approved"},
    ]

    answer = api("reviewer").post(f"{INBOX}decide/", {"items": items})

    results = answer.json()["results"]
    assert [result["id"] for result in results] == [item["id"] for item in items]
    assert [result["ok"] for result in results] == [True] * 99 + [False]
    assert [result["status"] for result in results[97:]] == ["approved", "rejected", None]
    assert results[-1]["problem"]["code"] == "not_found"


def test_an_item_of_a_bulk_that_changed_since_it_was_shown_is_left_alone(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("reviewer")
    changed, same = (asked(api("operator")) for _ in "12")
    client.post(f"/api/v1/activities/{changed['id']}/start/")

    items = [{"id": one["id"], "decision": "approved", "version": 1} for one in (changed, same)]
    results = client.post(f"{INBOX}decide/", {"items": items}).json()["results"]

    assert [result["ok"] for result in results] == [False, True]
    assert results[0]["problem"]["code"] == "precondition_failed"
    assert engine.status(acme, UUID(changed["id"])) == "in_progress"
