"""Approvals over the API: details, lists, decisions and withdrawals, and who may do what."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections

from activities.models import ActivityEvent
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.approvals_api.addresses import APPROVALS, INBOX
from tests.open_questions import links_of

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_at_a_time")]
QUESTION = {"type": "brand_direction", "title": "Which brand?"}


def request_approval(client: Any, *activities: UUID, **members: Any) -> dict[str, Any]:
    body = {**QUESTION, "activity_ids": [str(one) for one in activities], **members}
    answer = client.post(APPROVALS, body)
    assert answer.status_code == 201, answer.json()
    approval: dict[str, Any] = answer.json()
    return approval


def address_of(approval: dict[str, Any], verb: str = "") -> str:
    return f"{APPROVALS}{approval['id']}/{verb + '/' if verb else ''}"


def test_an_approval_contains_its_question_rules_and_linked_activities(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)

    response = api("operator", name="Ops").post(
        APPROVALS,
        {
            **QUESTION, "description": "Pick one.", "options": ["a", "b"], "activity_ids": [str(activity_id)],
            "human_role": "editor", "due_seconds": 60, "on_timeout": "escalate", "quorum": 2, "voters": 3,
        },
    )  # fmt: skip
    approval = response.json()

    assert (response.status_code, response["Location"]) == (201, f"{APPROVALS}{approval['id']}/")
    assert {name: approval[name] for name in ("type", "title", "description", "options", "status", "human_role")} == {
        "type": "brand_direction", "title": "Which brand?", "description": "Pick one.", "options": ["a", "b"],
        "status": "pending", "human_role": "editor",
    }  # fmt: skip
    assert (approval["requested_by"], approval["quorum"], approval["voters"], approval["votes"]) == (
        "token:Ops",
        2,
        3,
        [],
    )
    assert (approval["on_timeout"], approval["self_approval"], approval["decided_by"], approval["notes"]) == (
        "escalate", False, None, None
    )  # fmt: skip
    assert approval["due_at"]
    (link,) = approval["links"]
    assert (link["activity"], link["name"], link["status"], link["state"], link["reason"]) == (
        str(activity_id), "work 0", "awaiting_review", "waiting", ""
    )  # fmt: skip
    current = api("viewer").get(response["Location"])
    assert (current.json(), version_of(current)) == (approval, str(approval["version"]))


def test_the_response_to_a_decision_lists_woken_and_skipped_activities(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    first, second = engine.submit(acme, count=2)
    approval = request_approval(api("operator"), first, second, options=["a", "b"])
    api("operator").post(f"/api/v1/activities/{second}/cancel/")

    decided = api("reviewer", name="Ann").post(
        address_of(approval, "decide"), {"decision": "approved", "notes": "Good.", "chosen_option": "a"}
    )

    body = decided.json()
    assert (decided.status_code, body["status"], body["decided_by"]) == (200, "approved", "token:Ann")
    assert (body["chosen_option"], body["notes"]) == ("a", "Good.")
    assert (body["woken"], body["skipped"]) == ([str(first)], [str(second)])
    late = problem(
        api("reviewer", name="Bob").post(address_of(approval, "decide"), {"decision": "rejected"}),
        409,
        "already_decided",
    )
    assert (late["decided_by"], late["decision"], late["decided_at"]) == (
        "token:Ann",
        "approved",
        body["decided_at"],
    )


@in_one_test("route", ["decide", "approve", "inbox"])
def test_an_approval_needs_an_option_where_options_are_offered(
    api: Any, engine: Engine, acme: Tenant, route: str
) -> None:
    (activity_id,) = engine.submit(acme)
    approval = request_approval(api("operator"), activity_id, options=["calm", "loud"])
    client = api("reviewer", name="Ann")

    if route == "decide":
        refused = problem(
            client.post(address_of(approval, "decide"), {"decision": "approved"}), 400, "validation_failed"
        )
    elif route == "approve":
        address = f"/api/v1/activities/{approval['id']}/approve/"
        refused = problem(client.post(address), 400, "validation_failed")
    else:
        body = {"items": [{"id": approval["id"], "decision": "approved"}]}
        refused = client.post(f"{INBOX}decide/", body).json()["results"][0]["problem"]

    assert refused["errors"] == [
        {"path": "chosen_option", "message": "must be one of the options: 'calm', 'loud'"}
    ]
    assert client.get(address_of(approval)).json()["status"] == "pending"
    assert engine.status(acme, activity_id) == "awaiting_review"


@pytest.mark.parametrize("route", ["decide", "approve", "inbox"])
def test_every_route_to_decide_has_the_same_effect(
    api: Any, engine: Engine, acme: Tenant, route: str
) -> None:
    (activity_id,) = engine.submit(acme)
    approval = request_approval(api("operator"), activity_id)
    client = api("reviewer", name="Ann")

    if route == "decide":
        client.post(address_of(approval, "decide"), {"decision": "approved", "notes": "ok"})
    elif route == "approve":
        client.post(f"/api/v1/activities/{approval['id']}/approve/", {"notes": "ok"})
    else:
        item = {"id": approval["id"], "decision": "approved", "notes": "ok"}
        client.post(f"{INBOX}decide/", {"items": [item]})

    current = client.get(address_of(approval)).json()
    assert (current["status"], current["decided_by"], current["notes"]) == ("approved", "token:Ann", "ok")
    assert links_of(acme, UUID(approval["id"])) == {activity_id: ("woken", "")}


def test_one_vote_of_a_quorum_leaves_an_approval_pending_and_is_listed(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    asker, ann = api("operator", name="Asker"), api("reviewer", name="Ann", person="Ann")
    approval = request_approval(asker, quorum=2, voters=3)

    first = ann.post(address_of(approval, "decide"), {"decision": "approved", "notes": "yes"})

    assert (first.status_code, first.json()["status"]) == (200, "pending")
    (vote,) = first.json()["votes"]
    assert (vote["by"], vote["decision"], vote["notes"]) == ("token:Ann", "approved", "yes")
    again = problem(ann.post(address_of(approval, "decide"), {"decision": "rejected"}), 409, "already_voted")
    assert (again["decided_by"], again["decision"]) == ("token:Ann", "approved")
    problem(asker.post(address_of(approval, "decide"), {"decision": "approved"}), 403, "forbidden")
    last = api("reviewer", person="Bob").post(address_of(approval, "decide"), {"decision": "approved"})
    assert last.json()["status"] == "approved"


def test_a_decision_with_the_version_before_the_last_vote_is_refused(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    approval = request_approval(api("operator"), quorum=3)
    api("reviewer", person="a").post(address_of(approval, "decide"), {"decision": "approved"})
    current = api("reviewer").get(address_of(approval))["ETag"]
    api("reviewer", person="b").post(address_of(approval, "decide"), {"decision": "approved"})

    third = api("reviewer", person="c")
    stale = third.post(
        address_of(approval, "decide"), {"decision": "approved"}, headers={"If-Match": current}
    )

    problem(stale, 412, "precondition_failed")
    now = third.get(address_of(approval))["ETag"]
    fresh = third.post(address_of(approval, "decide"), {"decision": "approved"}, headers={"If-Match": now})
    assert fresh.json()["status"] == "approved"


def test_an_approval_about_work_that_has_ended_since_has_a_new_version(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    ended, waiting = engine.submit(acme, count=2)
    operator = api("operator")
    approval = request_approval(operator, ended, waiting)
    tag = operator.get(address_of(approval))["ETag"]

    operator.post(f"/api/v1/activities/{ended}/cancel/")

    current = operator.get(address_of(approval), headers={"If-None-Match": tag})
    assert {link["activity"]: link["state"] for link in current.json()["links"]} == {
        str(ended): "skipped",
        str(waiting): "waiting",
    }
    decision = {"decision": "approved"}
    stale = operator.post(address_of(approval, "decide"), decision, headers={"If-Match": tag})
    problem(stale, 412, "precondition_failed")


def test_only_operators_withdraw_an_approval(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = request_approval(api("operator", name="Ops"), activity_id)

    problem(api("reviewer").post(address_of(approval, "withdraw")), 403, "forbidden")
    withdrawn = api("operator").post(address_of(approval, "withdraw"), {"reason": "not needed"}).json()

    assert (withdrawn["status"], withdrawn["notes"], withdrawn["woken"]) == (
        "withdrawn",
        "not needed",
        [str(activity_id)],
    )
    late = problem(
        api("reviewer").post(address_of(approval, "decide"), {"decision": "approved"}), 409, "already_decided"
    )
    assert late["decision"] == "withdrawn"


def test_unknown_activities_and_those_of_other_tenants_are_refused_with_their_path(
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
def test_an_invalid_approval_is_refused_with_its_path(
    api: Any, engine: Engine, acme: Tenant, members: Any, path: str
) -> None:
    refused = problem(api("operator").post(APPROVALS, {**QUESTION, **members}), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]


def test_approvals_can_be_filtered_by_type_status_role_and_activity(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    client = api("operator")
    about = request_approval(client, activity_id, type="content_direction")
    for_editor = request_approval(client, human_role="editor")
    decided = request_approval(client)
    client.post(address_of(decided, "decide"), {"decision": "rejected", "notes": "no"})

    def ids(query: str) -> list[str]:
        return [one["id"] for one in client.get(f"{APPROVALS}?{query}").json()["results"]]

    assert ids("") == [decided["id"], for_editor["id"], about["id"]]
    assert ids("type=content_direction") == ids(f"activity={activity_id}") == [about["id"]]
    assert ids("human_role=editor") == [for_editor["id"]]
    assert (ids("status=rejected"), ids("status=pending")) == (
        [decided["id"]],
        [for_editor["id"], about["id"]],
    )
    problem(client.get(f"{APPROVALS}?statuz=pending"), 400, "validation_failed")


@in_one_test(("role", "verb"), [("viewer", "decide"), ("viewer", "withdraw"), ("reviewer", "")])
def test_viewers_cannot_decide_and_reviewers_cannot_request(
    api: Any, engine: Engine, acme: Tenant, role: str, verb: str
) -> None:
    approval = request_approval(api("operator"))

    if verb:
        body: Any = {"decision": "approved"} if verb == "decide" else {}
        problem(api(role).post(address_of(approval, verb), body), 403, "forbidden")
    else:
        problem(api(role).post(APPROVALS, QUESTION), 403, "forbidden")


def test_a_gate_is_not_found_among_approvals(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, requires_approval=True)
    engine.drain()
    (gate,) = api().get(f"{INBOX}?gate=true").json()["results"]

    problem(api().post(f"{APPROVALS}{gate['id']}/decide/", {"decision": "approved"}), 404, "not_found")

    assert engine.status(acme, UUID(gate["id"])) == "created"


def test_get_requests_on_every_link_change_nothing(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = request_approval(api("operator"), activity_id, due_seconds=60, on_timeout="approve")
    client = api("admin")
    links = [address_of(approval), approval["links"][0]["link"], APPROVALS, INBOX]
    links += [
        address_of(approval, "decide"),
        address_of(approval, "withdraw"),
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
    approval = request_approval(api("operator"))
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


def test_an_item_of_a_bulk_decision_with_an_old_version_is_skipped(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("reviewer")
    changed, same = (request_approval(api("operator")) for _ in "12")
    client.post(f"/api/v1/activities/{changed['id']}/start/")

    items = [{"id": one["id"], "decision": "approved", "version": 1} for one in (changed, same)]
    results = client.post(f"{INBOX}decide/", {"items": items}).json()["results"]

    assert [result["ok"] for result in results] == [False, True]
    assert results[0]["problem"]["code"] == "precondition_failed"
    assert engine.status(acme, UUID(changed["id"])) == "in_progress"
