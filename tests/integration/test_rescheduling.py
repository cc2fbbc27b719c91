"""When work that waits has its turn: its priority and its dates, changed while it waits, and what else holds it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities import outbox, relay, suspension, wait_reasons
from activities.admission.exchange import Exchange, Offer
from activities.human_tasks import deadlines
from activities.maintenance import recovery
from activities.models import Activity, Alert, Deadline
from agents.contracts import Accepted, Completed, Output
from agents.exceptions import PermanentAgentError, RetryableAgentError
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.events import log
from tenants.models import Budget, Tenant
from tests.answers import problem
from tests.engine import Engine, at_once
from tests.open_questions import DIRECTION, asking
from tests.spending import broken_invariants, capped, costing, let_go

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ACTIVITIES, APPROVALS = "/api/v1/activities/", "/api/v1/approvals/"
SLOW = {"strategy": "fixed", "base_seconds": 300.0, "jitter": 0.0}


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant, max_concurrency=1)
    return tenant


@pytest.fixture
def client(api: Any, acme: Tenant) -> Any:
    return api("operator")


def from_now(**span: float) -> str:
    return (datetime.now(UTC) + timedelta(**span)).isoformat()


def changed(client: Any, activity_id: UUID | str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = client.patch(f"{ACTIVITIES}{activity_id}/", body)
    assert answer.status_code == status, answer.content
    relay.flush()
    return dict(answer.json())


def why(client: Any, activity_id: UUID | str) -> str | None:
    return client.get(f"{ACTIVITIES}{activity_id}/why/").json()["code"]


def timeline(client: Any, activity_id: UUID | str) -> list[Mapping[str, Any]]:
    found = client.get(f"{ACTIVITIES}{activity_id}/timeline/?limit=200").json()["results"]
    return [moment for moment in found if moment["kind"] == "transition"]


def ran(engine: Engine) -> list[str]:
    return [request.name for request in engine.agent.calls]


def come_to_rest(engine: Engine) -> None:
    outbox.promote()
    recovery.offer_forgotten()
    engine.drain()


def busy(engine: Engine, acme: Tenant) -> UUID:
    """One that holds the only slot of the role; the next waits."""
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme)
    engine.drain()
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    engine.agent.calls.clear()
    return activity_id


def test_a_new_band_is_in_force_at_once(client: Any, engine: Engine, acme: Tenant) -> None:
    running = busy(engine, acme)
    first, second, third = engine.submit(acme, count=3)

    shown = changed(client, third, priority=1)
    changed(client, first, priority="background")
    client.post(f"{ACTIVITIES}{running}/cancel/")
    engine.drain()

    assert shown["priority"] == 1
    assert ran(engine) == ["work 2", "work 1", "work 0"]
    assert second


def test_of_offers_that_come_in_the_wrong_order_the_stored_priority_has_the_last_word(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    running = busy(engine, acme)
    early, late = engine.submit(acme, count=2)
    stale = Offer.of(engine.get(acme, late))
    changed(client, late, priority=1)
    relay.hand_over(Exchange(offers=[stale]))  # of a process that had read the row before
    relay.flush()

    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=late).update()
    recovery.YOUNG_SECONDS, before = 0.0, recovery.YOUNG_SECONDS
    try:
        recovery.offer_forgotten()
        relay.flush()
    finally:
        recovery.YOUNG_SECONDS = before
    client.post(f"{ACTIVITIES}{running}/cancel/")
    engine.drain()

    assert ran(engine) == ["work 1", "work 0"]
    assert early


def test_a_date_holds_what_was_on_its_way_to_a_worker_and_its_end_lets_it_go(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)  # granted, its message is on the queue
    assert engine.messages() == 1

    changed(client, activity_id, not_before=from_now(hours=1))
    assert why(client, activity_id) == "not_before"
    come_to_rest(engine)
    assert engine.status(acme, activity_id) == "created"

    shown = changed(client, activity_id, not_before=None)
    come_to_rest(engine)
    assert (shown["not_before"], engine.status(acme, activity_id)) == (None, "done")


def test_an_earlier_date_takes_the_place_of_a_later_one(client: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=9))

    changed(client, activity_id, not_before=from_now(seconds=-5))
    engine.drain()

    assert engine.status(acme, activity_id) == "done"


def test_it_is_an_event_of_the_history_and_one_of_the_trail(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))
    before = client.get(f"{ACTIVITIES}{activity_id}/").json()["version"]

    shown = changed(client, activity_id, priority=2)
    again = changed(client, activity_id, priority=2)

    moment = timeline(client, activity_id)[-1]
    assert (moment["verb"], moment["source"], moment["target"]) == ("reschedule", "created", "created")
    assert moment["detail"]["changes"] == {"priority": [10, 2]}
    assert (shown["version"], again["version"]) == (before + 1, before + 1)
    events = log.page(acme.pk, None, 100, log.EventFilter(activity=activity_id)).events
    assert [event.kind for event in events] == ["activity.created", "activity.rescheduled"]
    entries = api("admin").get("/api/v1/audit/?limit=50").json()["results"]
    *_, entry = (
        one for one in entries if one["operation"] == "PATCH /activities/{id}/"
    )  # the first of the two
    assert entry["changes"]["priority"] == [10, 2]
    assert broken_invariants() == []


def test_who_has_seen_another_version_changes_nothing(client: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))
    address = f"{ACTIVITIES}{activity_id}/"
    etag = client.get(address)["ETag"]

    assert client.patch(address, {"priority": 3}, headers={"If-Match": etag}).status_code == 200
    problem(client.patch(address, {"priority": 4}, headers={"If-Match": etag}), 412, "precondition_failed")
    assert engine.get(acme, activity_id).priority == 3


def test_what_runs_or_is_over_stays_as_it_is(client: Any, engine: Engine, acme: Tenant) -> None:
    running = busy(engine, acme)
    address = f"{ACTIVITIES}{running}/"

    problem(client.patch(address, {"priority": 1}), 409, "transition_refused")
    client.post(f"{address}cancel/")
    problem(client.patch(address, {"not_before": from_now(hours=1)}), 409, "transition_refused")

    engine.agent.behaviour = lambda request: _raise(PermanentAgentError("no"))
    (failed,) = engine.submit(acme)
    engine.drain()
    problem(client.patch(f"{ACTIVITIES}{failed}/", {"priority": 1}), 409, "transition_refused")


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({"priority": 0}, ["priority"]),
        ({"priority": "soon"}, ["priority"]),
        ({"priority": 21, "due_at": "tomorrow"}, ["due_at", "priority"]),
        ({"priority_scale": "ade"}, ["priority_scale"]),
        ({"not_before": "2026-05-01T09:30:00"}, ["not_before"]),
        ({"status": "done", "name": "x"}, ["name", "status"]),
        ({"expires_at": "2020-01-01T00:00:00Z", "due_at": "2020-01-01T00:00:00Z"}, ["due_at", "expires_at"]),
        ({"not_before": "2999-01-02T00:00:00Z", "expires_at": "2999-01-01T00:00:00Z"}, ["expires_at"]),
        ([], [""]),
    ],
)
def test_every_error_names_its_path(
    client: Any, engine: Engine, acme: Tenant, body: Any, paths: list[str]
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))

    found = problem(client.patch(f"{ACTIVITIES}{activity_id}/", body), 400, "validation_failed")

    assert sorted(fault["path"] for fault in found["errors"]) == paths
    assert timeline(client, activity_id)[-1]["verb"] == "submit"


def test_a_date_behind_the_stored_expiry_is_a_fault_of_the_date(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(
        acme,
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        not_before=datetime.now(UTC) + timedelta(minutes=9),
    )
    refused = client.patch(f"{ACTIVITIES}{activity_id}/", {"not_before": from_now(hours=2)})
    assert problem(refused, 400, "validation_failed")["errors"][0]["path"] == "not_before"
    changed(client, activity_id, not_before=from_now(hours=2), expires_at=None)


def test_null_makes_a_priority_normal_and_takes_dates_away(client: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, priority=3, not_before=datetime.now(UTC) + timedelta(days=1))
    dates = {"due_at": from_now(days=2), "expires_at": from_now(days=3)}
    assert {
        name for name, value in changed(client, activity_id, **dates).items() if value and name in dates
    } == {*dates}

    shown = changed(client, activity_id, priority=None, due_at=None, expires_at=None)

    assert (shown["priority"], shown["due_at"], shown["expires_at"]) == (10, None, None)


def test_only_operators_of_the_tenant_change_it(
    api: Any, client: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))
    address = f"{ACTIVITIES}{activity_id}/"

    problem(api("reviewer").patch(address, {"priority": 1}), 403, "forbidden")
    problem(api("admin", tenant=other_tenant).patch(address, {"priority": 1}), 404, "not_found")
    assert engine.get(acme, activity_id).priority == 10


def test_the_delay_of_a_retry_outlasts_a_date_that_is_taken_away(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: _raise(RetryableAgentError("busy"))
    (activity_id,) = engine.submit(acme, retry=SLOW)
    engine.drain()
    assert why(client, activity_id) == "retry_delay"

    changed(client, activity_id, not_before=from_now(hours=1))
    assert why(client, activity_id) == "not_before"
    changed(client, activity_id, not_before=None)
    assert why(client, activity_id) == "retry_delay"
    changed(client, activity_id, not_before=from_now(seconds=30))
    assert why(client, activity_id) == "retry_delay"
    come_to_rest(engine)
    assert engine.status(acme, activity_id) == "created"


def test_what_a_question_holds_heeds_the_date_after_the_answer(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(seconds=30))
    asked = api("admin").post(APPROVALS, {**DIRECTION, "activity_ids": [str(activity_id)]})
    assert asked.status_code == 201, asked.content

    changed(client, activity_id, not_before=from_now(hours=5))
    api("admin").post(f"{APPROVALS}{asked.json()['id']}/decide/", {"decision": "approved"})
    come_to_rest(engine)

    assert (engine.status(acme, activity_id), why(client, activity_id)) == ("created", "not_before")
    changed(client, activity_id, not_before=None)
    come_to_rest(engine)
    assert engine.status(acme, activity_id) == "done"


def test_a_date_set_while_people_remove_a_blocker_holds_afterwards(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    blocker = {"type": "credentials", "message": "expired"}
    activity_id, resolution = asking(engine, acme, "report_blocker", blocker)
    assert engine.status(acme, activity_id) == "blocked"
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))

    changed(client, activity_id, not_before=from_now(hours=5))
    suspension.resolve_blocker(acme.pk, resolution, actor="test", note="renewed")
    come_to_rest(engine)

    assert (engine.status(acme, activity_id), why(client, activity_id)) == ("created", "not_before")


def test_money_lets_go_what_waits_for_it_not_before_its_date(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    capped(acme, "0.10")
    engine.agent.behaviour = costing("0.25")
    (activity_id,) = engine.submit(acme)
    engine.drain()
    assert why(client, activity_id) == "budget"

    changed(client, activity_id, priority=1, not_before=from_now(hours=5))
    assert why(client, activity_id) == "budget"
    with tenant_scope(acme.pk):
        Budget.objects.update(cap=5)
    let_go(engine)
    come_to_rest(engine)
    assert why(client, activity_id) == "not_before"


def test_the_delay_of_a_retry_outlasts_a_question_and_a_date_that_is_taken_away_meanwhile(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: _raise(RetryableAgentError("busy"))
    (activity_id,) = engine.submit(acme, retry=SLOW)
    engine.drain()
    asked = api("admin").post(APPROVALS, {**DIRECTION, "activity_ids": [str(activity_id)]}).json()

    changed(client, activity_id, not_before=from_now(hours=1))
    changed(client, activity_id, not_before=None)
    api("admin").post(f"{APPROVALS}{asked['id']}/decide/", {"decision": "approved"})
    relay.flush()
    come_to_rest(engine)
    assert (len(ran(engine)), why(client, activity_id)) == (1, "retry_delay")

    changed(client, activity_id, not_before=from_now(hours=1))
    changed(client, activity_id, not_before=None)
    come_to_rest(engine)
    assert (len(ran(engine)), why(client, activity_id)) == (1, "retry_delay")


@pytest.mark.parametrize("how", ["retry", "replay"])
def test_work_that_is_tried_again_heeds_the_date_that_was_set_before_it_failed(
    api: Any, client: Any, engine: Engine, acme: Tenant, settings: Any, how: str
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 1
    engine.agent.behaviour = lambda request: Accepted()
    blocker = {"type": "credentials", "message": "expired"}
    activity_id, resolution = asking(engine, acme, "report_blocker", blocker)
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    engine.agent.calls.clear()
    changed(client, activity_id, not_before=from_now(hours=5))
    suspension.resolve_blocker(acme.pk, resolution, actor="test", note="renewed")
    assert engine.status(acme, activity_id) == "needs_review"

    if how == "retry":
        answer = client.post(f"{ACTIVITIES}{activity_id}/retry/")
    else:
        answer = api("admin").post("/api/v1/dead-letters/replay/", {"filter": {"state": "open"}})
    assert answer.status_code in (200, 202), answer.content
    come_to_rest(engine)

    assert (engine.status(acme, activity_id), why(client, activity_id)) == ("created", "not_before")
    assert ran(engine) == []
    changed(client, activity_id, not_before=None)
    come_to_rest(engine)
    assert engine.status(acme, activity_id) == "done"


def test_whoever_takes_work_over_has_it_until_the_same_time(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    changed(client, activity_id, due_at=from_now(minutes=1))

    answer = client.post(
        f"{ACTIVITIES}{activity_id}/reassign/", {"agent_role": "dev", "reason": "It knows this."}
    )
    heir = answer.json()["id"]
    assert (
        deadlines.pass_due(datetime.now(UTC) + timedelta(minutes=2)) == 2
    )  # nothing happens to what is over

    assert engine.get(acme, UUID(heir)).priority == 1
    with tenant_scope(acme.pk):
        assert list(Alert.objects.values_list("kind", "activity_id")) == [("overdue", UUID(heir))]


def test_a_step_of_a_pipeline_moves_and_the_next_follows(client: Any, engine: Engine, acme: Tenant) -> None:
    steps = [{"id": "one", "agent_role": "qa"}, {"id": "two", "agent_role": "qa", "depends_on": ["one"]}]
    versions.save(acme.pk, {"key": "p", "name": "P", "steps": steps}, actor="test")
    with tenant_scope(acme.pk):
        run = start_run(acme.pk, "p", NewRun(), actor="test")
    relay.flush()
    with tenant_scope(acme.pk):
        first = Activity.objects.get(pipeline_run_id=run.pk)

    changed(client, first.pk, not_before=from_now(hours=1))
    come_to_rest(engine)
    assert ran(engine) == []
    changed(client, first.pk, not_before=None)
    come_to_rest(engine)

    assert ran(engine) == ["one", "two"]


def test_work_of_one_group_and_of_the_same_files_keeps_its_turns(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    engine.serve(acme, max_concurrency=5)
    engine.agent.behaviour = lambda request: Accepted()
    (holder,) = engine.submit(acme, group_key="g", files=["src/a"])
    engine.drain()
    engine.agent.calls.clear()
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    first, second = engine.submit(acme, count=2, group_key="g", files=["src/a"])

    changed(client, second, priority=1)
    assert (why(client, first), why(client, second)) == ("group_cap", "group_cap")
    client.post(f"{ACTIVITIES}{holder}/cancel/")
    engine.drain()

    assert ran(engine) == ["work 1", "work 0"]


def test_the_time_of_a_persons_task_moves_with_what_happens_then(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    asked = api("admin").post(
        ACTIVITIES,
        {"name": "May it go out?", "human_role": "editor", "is_approval_gate": True, "due_seconds": 3600, "on_timeout": "reject"},
    ).json()  # fmt: skip

    shown = changed(client, asked["id"], due_at=from_now(days=2), priority=1)
    assert deadlines.pass_due(datetime.now(UTC) + timedelta(hours=2)) == 0
    assert deadlines.pass_due(datetime.now(UTC) + timedelta(days=3)) == 1

    assert (shown["priority"], engine.status(acme, asked["id"])) == (1, "rejected")
    task = api("admin").post(ACTIVITIES, {"name": "Write it", "human_role": "editor"}).json()
    refused = client.patch(f"{ACTIVITIES}{task['id']}/", {"not_before": from_now(hours=1)})
    assert problem(refused, 400, "validation_failed")["errors"][0]["path"] == "not_before"
    changed(client, task["id"], due_at=from_now(hours=1))
    changed(client, task["id"], due_at=None)
    with tenant_scope(acme.pk):
        assert not Deadline.objects.filter(activity_id=task["id"]).exists()


def test_an_agents_work_that_is_overdue_goes_before_other_work(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    running = busy(engine, acme)
    first, late = engine.submit(acme, count=2)
    changed(client, late, due_at=from_now(minutes=1))

    assert deadlines.pass_due(datetime.now(UTC) + timedelta(minutes=2)) == 1
    client.post(f"{ACTIVITIES}{running}/cancel/")
    engine.drain()

    assert ran(engine) == ["work 1", "work 0"]
    assert engine.get(acme, late).priority == 1
    with tenant_scope(acme.pk):
        assert list(Alert.objects.values_list("kind", "activity_id")) == [("overdue", late)]
    assert first


def test_of_two_changes_at_once_both_are_on_record_in_some_order(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))
    clients = [api("operator"), api("operator")]

    answers = at_once(
        lambda: clients[0].patch(f"{ACTIVITIES}{activity_id}/", {"priority": 2}),
        lambda: clients[1].patch(f"{ACTIVITIES}{activity_id}/", {"expires_at": from_now(days=2)}),
    )

    found = engine.get(acme, activity_id)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert (found.priority, found.expires_at is not None, found.version) == (2, True, 3)
    assert broken_invariants() == []


def test_a_change_and_a_claim_at_once_leave_one_of_two_ends(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    for _ in range(5):
        (activity_id,) = engine.submit(acme)
        answer, _ = at_once(
            lambda activity_id=activity_id: client.patch(
                f"{ACTIVITIES}{activity_id}/", {"not_before": from_now(hours=1)}
            ),
            engine.drain,
        )
        come_to_rest(engine)
        expected = "created" if answer.status_code == 200 else "done"
        assert engine.status(acme, activity_id) == expected
        assert wait_reasons.why(acme.pk, activity_id).code == (
            "not_before" if expected == "created" else None
        )
        client.post(f"{ACTIVITIES}{activity_id}/cancel/")
