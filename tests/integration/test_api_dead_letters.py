"""`/dead-letters/`: permanent failures are grouped by cause, replayed and dismissed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from activities import dead_letters as dead_letters_escalation
from activities.api.dead_letters import DeadLetterGroups
from agents.exceptions import PermanentAgentError
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.failed_work import escalations_of, letters_of, submit_failing

pytestmark = pytest.mark.usefixtures("one_at_a_time")

LETTERS = "/api/v1/dead-letters/"
REPLAY, DISMISS, GROUPS = f"{LETTERS}replay/", f"{LETTERS}dismiss/", f"{LETTERS}groups/"


def letter_of(tenant: Tenant, activity_id: UUID) -> str:
    (letter,) = letters_of(tenant, activity_id)
    return str(letter.pk)


def test_a_dead_letter_contains_the_failure_and_its_resolution(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = submit_failing(engine, acme)
    dead_letters_escalation.handle_waiting()
    (escalation,) = escalations_of(acme, activity_id)

    (letter,) = api("viewer").get(LETTERS).json()["results"]

    assert {name: letter[name] for name in ("activity", "name", "agent_role", "reason", "state", "escalation")} == {
        "activity": str(activity_id), "name": "work 0", "agent_role": "qa", "reason": "permanent", "state": "open",
        "escalation": str(escalation.pk),
    }  # fmt: skip
    assert (letter["error"]["code"], letter["attempts"], letter["stalls"], letter["cost_usd"]) == (
        "broken",
        1,
        0,
        "0.000000",
    )
    assert (letter["activity_status"], letter["closed_by"], letter["closed_at"]) == (
        "needs_review",
        None,
        None,
    )
    answer = api("viewer").get(f"{LETTERS}{letter['id']}/")
    assert answer.json() == letter
    assert answer["ETag"]


def test_each_filter_narrows_the_list(api: Any, engine: Engine, acme: Tenant) -> None:
    (first,) = submit_failing(engine, acme, "qa")
    (second,) = submit_failing(engine, acme, "dev")
    client = api("operator")
    client.post(f"{LETTERS}{letter_of(acme, second)}/replay/")
    (letter,) = letters_of(acme, first)
    before, after = (quote((letter.created_at + timedelta(microseconds=n)).isoformat()) for n in (0, 1))

    def ids_for(query: str) -> list[str]:
        return [one["activity"] for one in client.get(f"{LETTERS}?{query}").json()["results"]]

    assert ids_for("") == [str(second), str(first)]
    assert (
        ids_for("agent_role=qa")
        == ids_for("state=open")
        == ids_for(f"fingerprint={letter.fingerprint}")
        == [str(first)]
    )
    assert ids_for(f"activity={second}") == ids_for("state=replayed") == [str(second)]
    assert (ids_for("reason=stalled"), ids_for(f"pipeline_run={uuid4()}")) == ([], [])
    assert (ids_for(f"created_before={after}"), ids_for(f"created_before={before}")) == ([str(first)], [])
    assert ids_for(f"created_after={after}") == [str(second)]
    problem(client.get(f"{LETTERS}?role=qa"), 400, "validation_failed")


def test_similar_failures_form_one_group_with_the_newest_as_an_example(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    for number in range(3):
        ids = submit_failing(
            engine, acme, error=PermanentAgentError(f"Row {number} is missing.", code="missing")
        )
    submit_failing(engine, acme, error=PermanentAgentError("Out of memory.", code="memory"))
    client = api("operator")
    client.post(f"{LETTERS}{letter_of(acme, ids[0])}/replay/")

    groups = client.get(GROUPS).json()["results"]

    assert [(group["count"], group["open"], group["agent_role"]) for group in groups] == [
        (3, 2, "qa"),
        (1, 1, "qa"),
    ]
    assert groups[0]["example"]["activity"] == str(ids[0])
    assert groups[0]["example"]["error"]["message"] == "Row 2 is missing."
    assert groups[0]["first_at"] < groups[0]["last_at"]
    narrowed = client.get(f"{GROUPS}?state=open&fingerprint={groups[0]['fingerprint']}").json()["results"]
    assert [group["count"] for group in narrowed] == [2]
    problem(client.get(f"{GROUPS}?role=qa"), 400, "validation_failed")


def test_a_group_whose_example_is_deleted_meanwhile_is_left_out(
    api: Any, engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in "abb":
        submit_failing(engine, acme, error=PermanentAgentError("no", code=code))
    read_page = DeadLetterGroups.paginate_queryset

    def read_page_before_retention(view: Any, rows: Any) -> list[Any]:
        first, *others = read_page(view, rows) or []
        return [first._replace(example=str(uuid4())), *others]

    monkeypatch.setattr(DeadLetterGroups, "paginate_queryset", read_page_before_retention)

    assert [group["count"] for group in api().get(GROUPS).json()["results"]] == [1]


def test_every_page_of_groups_counts_whole_groups(api: Any, engine: Engine, acme: Tenant) -> None:
    for code in "abbccc":
        submit_failing(engine, acme, error=PermanentAgentError("no", code=code))
    client = api()

    groups, address, link = [], f"{GROUPS}?limit=1", "next"
    while address:
        page = client.get(address).json()
        groups += [(group["example"]["error"]["code"], group["count"]) for group in page["results"]]
        if page["next"] is None:
            link = "previous"
        address = page[link]

    assert groups == [("c", 3), ("b", 2), ("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("address", [REPLAY, DISMISS])
def test_unknown_ids_are_named_and_nothing_is_done(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant, address: str, dry_run: bool
) -> None:
    engine.serve(other_tenant)
    (own,), (foreign,) = submit_failing(engine, acme), submit_failing(engine, other_tenant)
    ids = [str(uuid4()), letter_of(acme, own), letter_of(other_tenant, foreign)]
    reason = {} if address == REPLAY else {"reason": "No use."}

    refused = problem(
        api("operator").post(address, {"ids": ids, "dry_run": dry_run, **reason}), 400, "validation_failed"
    )

    assert refused["errors"] == [
        {"path": f"ids[{index}]", "message": "is not a dead letter of this tenant"} for index in (0, 2)
    ]
    assert [letter.state for letter in letters_of(acme, own)] == ["open"]


@pytest.mark.parametrize("by", ["ids", "filter"])
def test_a_dry_run_counts_what_a_replay_then_does_exactly_once(
    api: Any, engine: Engine, acme: Tenant, by: str
) -> None:
    ids = submit_failing(engine, acme, count=3)
    chosen: Any = (
        [letter_of(acme, one) for one in ids] if by == "ids" else {"agent_role": "qa", "state": "open"}
    )
    client = api("operator", name="Ops")

    planned = client.post(REPLAY, {by: chosen, "per_second": 2, "dry_run": True}).json()
    untouched = {engine.status(acme, one) for one in ids}
    done = client.post(REPLAY, {by: chosen, "per_second": 2}).json()
    again = client.post(REPLAY, {by: chosen}).json()

    assert planned == {"count": 3, "skipped": 0, "seconds": 1.0, "dry_run": True}
    assert untouched == {"failed"}
    assert done == {**planned, "dry_run": False}
    assert (again["count"], again["skipped"]) == (0, 3 if by == "ids" else 0)
    engine.make_due(acme)
    engine.drain()
    assert {engine.status(acme, one) for one in ids} == {"done"}
    assert len(engine.agent.calls) == 3
    assert {letter.closed_by for letter in letters_of(acme, *ids)} == {"token:Ops"}


def test_a_filter_chooses_by_time(api: Any, engine: Engine, acme: Tenant) -> None:
    (old,) = submit_failing(engine, acme)
    at = datetime.now(UTC)
    (new,) = submit_failing(engine, acme)

    done = api("operator").post(REPLAY, {"filter": {"created_after": at.isoformat()}}).json()

    assert done["count"] == 1
    assert (engine.status(acme, old), engine.status(acme, new)) == ("failed", "created")


def test_one_letter_is_replayed_once(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = submit_failing(engine, acme)
    address = f"{LETTERS}{letter_of(acme, activity_id)}/replay/"
    client = api("operator", name="Ops")

    first = client.post(address)
    refused = problem(client.post(address), 409, "transition_refused")

    assert (first.status_code, first.json()["state"], first.json()["activity_status"]) == (
        200,
        "replayed",
        "created",
    )
    assert "replayed by token:Ops" in refused["detail"]


def test_dismissed_failures_are_cancelled_with_the_reason(api: Any, engine: Engine, acme: Tenant) -> None:
    ids = submit_failing(engine, acme, count=2)
    dead_letters_escalation.handle_waiting()
    client = api("operator")

    planned = client.post(DISMISS, {"filter": {"state": "open"}, "reason": "old", "dry_run": True}).json()
    done = client.post(DISMISS, {"filter": {"state": "open"}, "reason": "old"}).json()

    assert planned == {"count": 2, "skipped": 0, "dry_run": True}
    assert done == {"count": 2, "skipped": 0, "dry_run": False}
    assert {engine.get(acme, one).cancel_reason for one in ids} == {"old"}
    assert {letter.state for letter in letters_of(acme, *ids)} == {"closed"}
    assert {one.status for activity in ids for one in escalations_of(acme, activity)} == {"cancelled"}


@in_one_test(
    ("address", "body", "path"),
    [
        (REPLAY, {}, "ids"), (REPLAY, {"ids": [str(uuid4())], "filter": {"state": "open"}}, "ids"), (REPLAY, {"ids": []}, "ids"),
        (REPLAY, {"ids": ["x"]}, "ids[0]"), (REPLAY, {"filter": {"role": "qa"}}, "filter.role"),
        (REPLAY, {"filter": {"state": "gone"}}, "filter.state"), (REPLAY, {"filter": {"state": "open"}, "per_second": 0}, "per_second"),
        (REPLAY, {"filter": {"state": "open"}, "dry_run": "yes"}, "dry_run"), (DISMISS, {"filter": {"state": "open"}}, "reason"),
        (DISMISS, {"filter": {"state": "open"}, "reason": "x", "per_second": 1}, "per_second"),
    ],
)  # fmt: skip
def test_an_error_of_a_body_names_its_path(
    api: Any, engine: Engine, acme: Tenant, address: str, body: Any, path: str
) -> None:
    (activity_id,) = submit_failing(engine, acme)

    refused = problem(api("operator").post(address, body), 400, "validation_failed")

    assert path in [error["path"] for error in refused["errors"]]
    assert engine.status(acme, activity_id) == "failed"


@pytest.mark.parametrize("address", [REPLAY, DISMISS])
@pytest.mark.parametrize("chosen", [{}, {"state": None}])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_filter_without_a_condition_does_not_choose_everything(
    api: Any, engine: Engine, acme: Tenant, address: str, chosen: dict[str, Any], dry_run: bool
) -> None:
    (activity_id,) = submit_failing(engine, acme)
    body = {"filter": chosen, "dry_run": dry_run} | ({"reason": "old"} if address == DISMISS else {})

    refused = problem(api("operator").post(address, body), 400, "validation_failed")

    (error,) = refused["errors"]
    assert (error["path"], "at least one condition" in error["message"]) == ("filter", True)
    assert engine.status(acme, activity_id) == "failed"


def test_dead_letters_of_another_tenant_are_neither_visible_nor_changed(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    (activity_id,) = submit_failing(engine, acme)
    letter, stranger = letter_of(acme, activity_id), api("admin", tenant=other_tenant)

    assert stranger.get(LETTERS).json()["results"] == stranger.get(GROUPS).json()["results"] == []
    problem(stranger.get(f"{LETTERS}{letter}/"), 404, "not_found")
    problem(stranger.post(f"{LETTERS}{letter}/replay/"), 404, "not_found")
    refused = problem(stranger.post(REPLAY, {"ids": [letter]}), 400, "validation_failed")
    assert refused["errors"][0]["path"] == "ids[0]"
    assert stranger.post(DISMISS, {"filter": {"state": "open"}, "reason": "x"}).json()["count"] == 0
    assert engine.status(acme, activity_id) == "failed"


@in_one_test("address", [REPLAY, DISMISS])
def test_only_operators_replay_or_dismiss_failed_work(
    api: Any, engine: Engine, acme: Tenant, address: str
) -> None:
    problem(api("reviewer").post(address, {"filter": {"state": "open"}, "reason": "x"}), 403, "forbidden")
