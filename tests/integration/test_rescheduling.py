"""Changing priority and dates of waiting work, together with everything else that may hold it back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities import budgets, outbox, relay, suspension, wait_reasons
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
from tests.accepted_work import accept_and_create
from tests.answers import problem
from tests.engine import Engine, simultaneously
from tests.open_questions import DIRECTION
from tests.spending import broken_invariants, complete_at_cost, make_budget, release_waiting_work

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


def patch(client: Any, activity_id: UUID | str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = client.patch(f"{ACTIVITIES}{activity_id}/", body)
    assert answer.status_code == status, answer.content
    relay.flush()
    return dict(answer.json())


def why(client: Any, activity_id: UUID | str) -> str | None:
    return client.get(f"{ACTIVITIES}{activity_id}/why/").json()["code"]


def timeline(client: Any, activity_id: UUID | str) -> list[Mapping[str, Any]]:
    moments = client.get(f"{ACTIVITIES}{activity_id}/timeline/?limit=200").json()["results"]
    return [moment for moment in moments if moment["kind"] == "transition"]


def names_of_calls(engine: Engine) -> list[str]:
    return [request.name for request in engine.agent.calls]


def raise_error(error: Exception) -> Any:
    raise error


def offer_and_run_all(engine: Engine) -> None:
    outbox.promote()
    recovery.offer_forgotten()
    engine.drain()


def occupy_the_slot(engine: Engine, acme: Tenant) -> UUID:
    """Start an activity that holds the only slot of the role, so that others wait."""
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme)
    engine.drain()
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    engine.agent.calls.clear()
    return activity_id


def test_a_new_priority_applies_at_once(client: Any, engine: Engine, acme: Tenant) -> None:
    running = occupy_the_slot(engine, acme)
    first, _, third = engine.submit(acme, count=3)

    after = patch(client, third, priority=1)
    patch(client, first, priority="background")
    client.post(f"{ACTIVITIES}{running}/cancel/")
    engine.drain()

    assert after["priority"] == 1
    assert names_of_calls(engine) == ["work 2", "work 1", "work 0"]


def test_the_stored_priority_wins_over_a_stale_offer(
    client: Any, engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = occupy_the_slot(engine, acme)
    _, late = engine.submit(acme, count=2)
    stale = Offer.of(engine.get(acme, late))
    patch(client, late, priority=1)
    relay.hand_over(Exchange(offers=[stale]))  # as by a process that had read the old row
    relay.flush()

    monkeypatch.setattr(recovery, "YOUNG_SECONDS", 0.0)
    recovery.offer_forgotten()
    relay.flush()
    client.post(f"{ACTIVITIES}{running}/cancel/")
    engine.drain()

    assert names_of_calls(engine) == ["work 1", "work 0"]


def test_a_new_date_holds_work_whose_message_is_queued_and_its_removal_releases_it(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)  # granted: its message is queued
    assert engine.messages() == 1

    patch(client, activity_id, not_before=from_now(hours=1))
    assert why(client, activity_id) == "not_before"
    offer_and_run_all(engine)
    assert engine.status(acme, activity_id) == "created"

    after = patch(client, activity_id, not_before=None)
    offer_and_run_all(engine)
    assert (after["not_before"], engine.status(acme, activity_id)) == (None, "done")


def test_an_earlier_date_replaces_a_later_one(client: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=9))

    patch(client, activity_id, not_before=from_now(seconds=-5))
    engine.drain()

    assert engine.status(acme, activity_id) == "done"


def test_a_change_is_one_event_of_the_timeline_and_one_of_the_audit_trail(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))
    before = client.get(f"{ACTIVITIES}{activity_id}/").json()["version"]

    after = patch(client, activity_id, priority=2)
    again = patch(client, activity_id, priority=2)

    moment = timeline(client, activity_id)[-1]
    assert (moment["verb"], moment["source"], moment["target"]) == ("reschedule", "created", "created")
    assert moment["detail"]["changes"] == {"priority": [10, 2]}
    assert (after["version"], again["version"]) == (before + 1, before + 1)
    events = log.page(acme.pk, None, 100, log.EventFilter(activity=activity_id)).events
    assert [event.kind for event in events] == ["activity.created", "activity.rescheduled"]
    entries = api("admin").get("/api/v1/audit/?limit=50").json()["results"]
    # The first of the two.
    *_, entry = (one for one in entries if one["operation"] == "PATCH /activities/{id}/")
    assert entry["changes"]["priority"] == [10, 2]
    assert broken_invariants() == []


def test_a_change_based_on_an_old_version_is_refused(client: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))
    address = f"{ACTIVITIES}{activity_id}/"
    etag = client.get(address)["ETag"]

    assert client.patch(address, {"priority": 3}, headers={"If-Match": etag}).status_code == 200
    problem(client.patch(address, {"priority": 4}, headers={"If-Match": etag}), 412, "precondition_failed")
    assert engine.get(acme, activity_id).priority == 3


def test_what_a_person_has_claimed_still_waits(client: Any, engine: Engine, acme: Tenant) -> None:
    task = client.post(ACTIVITIES, {"name": "Call", "human_role": "editor", "due_seconds": 60}).json()
    address = f"{ACTIVITIES}{task['id']}/"
    claimed = client.post(f"{address}start/").json()
    due_at = from_now(hours=1)

    changed = client.patch(address, {"priority": 3, "due_at": due_at}).json()

    assert (changed["status"], changed["priority"], changed["version"]) == (
        "in_progress",
        3,
        claimed["version"] + 1,
    )
    with tenant_scope(acme.pk):
        (deadline,) = Deadline.objects.filter(activity_id=task["id"])
    assert abs((deadline.at - datetime.fromisoformat(due_at)).total_seconds()) < 1


def test_running_and_ended_work_cannot_be_changed(client: Any, engine: Engine, acme: Tenant) -> None:
    running = occupy_the_slot(engine, acme)
    address = f"{ACTIVITIES}{running}/"

    problem(client.patch(address, {"priority": 1}), 409, "transition_refused")
    client.post(f"{address}cancel/")
    problem(client.patch(address, {"not_before": from_now(hours=1)}), 409, "transition_refused")

    engine.agent.behaviour = lambda request: raise_error(PermanentAgentError("no"))
    (failed,) = engine.submit(acme)
    engine.drain()
    problem(client.patch(f"{ACTIVITIES}{failed}/", {"priority": 1}), 409, "transition_refused")


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

    moments = problem(client.patch(f"{ACTIVITIES}{activity_id}/", body), 400, "validation_failed")

    assert sorted(fault["path"] for fault in moments["errors"]) == paths
    assert timeline(client, activity_id)[-1]["verb"] == "submit"


def test_a_date_after_the_stored_expiry_is_a_fault_of_the_date(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(
        acme,
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        not_before=datetime.now(UTC) + timedelta(minutes=9),
    )
    refused = client.patch(f"{ACTIVITIES}{activity_id}/", {"not_before": from_now(hours=2)})
    assert problem(refused, 400, "validation_failed")["errors"][0]["path"] == "not_before"
    patch(client, activity_id, not_before=from_now(hours=2), expires_at=None)


def test_a_gate_gets_no_expiry_because_it_would_never_expire(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, requires_approval=True)
    engine.drain()
    (gate,) = client.get(f"{ACTIVITIES}?parent={activity_id}").json()["results"]

    refused = client.patch(f"{ACTIVITIES}{gate['id']}/", {"expires_at": from_now(hours=2)})

    assert problem(refused, 400, "validation_failed")["errors"][0]["path"] == "expires_at"
    patch(client, gate["id"], expires_at=None, due_at=from_now(hours=1))
    patch(client, activity_id, expires_at=from_now(hours=2))  # a revision inherits it


def test_null_resets_the_priority_and_removes_dates(client: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, priority=3, not_before=datetime.now(UTC) + timedelta(days=1))
    dates = {"due_at": from_now(days=2), "expires_at": from_now(days=3)}
    assert {
        name for name, value in patch(client, activity_id, **dates).items() if value and name in dates
    } == {*dates}

    after = patch(client, activity_id, priority=None, due_at=None, expires_at=None)

    assert (after["priority"], after["due_at"], after["expires_at"]) == (10, None, None)


def test_only_operators_of_the_tenant_can_change_it(
    api: Any, client: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))
    address = f"{ACTIVITIES}{activity_id}/"

    problem(api("reviewer").patch(address, {"priority": 1}), 403, "forbidden")
    problem(api("admin", tenant=other_tenant).patch(address, {"priority": 1}), 404, "not_found")
    assert engine.get(acme, activity_id).priority == 10


def test_the_delay_of_a_retry_outlasts_a_removed_date(client: Any, engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: raise_error(RetryableAgentError("busy"))
    (activity_id,) = engine.submit(acme, retry=SLOW)
    engine.drain()
    assert why(client, activity_id) == "retry_delay"

    patch(client, activity_id, not_before=from_now(hours=1))
    assert why(client, activity_id) == "not_before"
    patch(client, activity_id, not_before=None)
    assert why(client, activity_id) == "retry_delay"
    patch(client, activity_id, not_before=from_now(seconds=30))
    assert why(client, activity_id) == "retry_delay"
    offer_and_run_all(engine)
    assert engine.status(acme, activity_id) == "created"


def test_work_that_an_approval_held_waits_for_its_date_afterwards(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(seconds=30))
    approval = api("admin").post(APPROVALS, {**DIRECTION, "activity_ids": [str(activity_id)]})
    assert approval.status_code == 201, approval.content

    patch(client, activity_id, not_before=from_now(hours=5))
    api("admin").post(f"{APPROVALS}{approval.json()['id']}/decide/", {"decision": "approved"})
    offer_and_run_all(engine)

    assert (engine.status(acme, activity_id), why(client, activity_id)) == ("created", "not_before")
    patch(client, activity_id, not_before=None)
    offer_and_run_all(engine)
    assert engine.status(acme, activity_id) == "done"


def test_a_date_set_while_work_is_blocked_applies_afterwards(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    blocker = {"type": "credentials", "message": "expired"}
    activity_id, resolution = accept_and_create(engine, acme, "report_blocker", blocker)
    assert engine.status(acme, activity_id) == "blocked"
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))

    patch(client, activity_id, not_before=from_now(hours=5))
    suspension.resolve_blocker(acme.pk, resolution, actor="test", note="renewed")
    offer_and_run_all(engine)

    assert (engine.status(acme, activity_id), why(client, activity_id)) == ("created", "not_before")


def submit_too_expensive(engine: Engine, tenant: Tenant) -> UUID:
    """Submit work that a budget holds back."""
    make_budget(tenant, "0.10")
    engine.agent.behaviour = complete_at_cost("0.25")
    (activity_id,) = engine.submit(tenant)
    engine.drain()
    return activity_id


def raise_cap(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        Budget.objects.update(cap=5)


def test_work_that_waited_for_its_budget_waits_for_its_date_afterwards(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id = submit_too_expensive(engine, acme)
    assert why(client, activity_id) == "budget"

    patch(client, activity_id, priority=1, not_before=from_now(hours=5))
    assert why(client, activity_id) == "budget"
    raise_cap(acme)
    release_waiting_work(engine)
    offer_and_run_all(engine)
    assert why(client, activity_id) == "not_before"


def test_work_that_a_budget_has_released_waits_for_a_new_date(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id = submit_too_expensive(engine, acme)
    raise_cap(acme)
    assert budgets.release_where_room() == 1

    patch(client, activity_id, not_before=from_now(hours=5))
    offer_and_run_all(engine)

    assert (engine.status(acme, activity_id), why(client, activity_id)) == ("created", "not_before")
    patch(client, activity_id, not_before=None)
    offer_and_run_all(engine)
    assert engine.status(acme, activity_id) == "done"


def test_the_delay_of_a_retry_outlasts_an_approval_and_a_removed_date(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: raise_error(RetryableAgentError("busy"))
    (activity_id,) = engine.submit(acme, retry=SLOW)
    engine.drain()
    approval = api("admin").post(APPROVALS, {**DIRECTION, "activity_ids": [str(activity_id)]}).json()

    patch(client, activity_id, not_before=from_now(hours=1))
    patch(client, activity_id, not_before=None)
    api("admin").post(f"{APPROVALS}{approval['id']}/decide/", {"decision": "approved"})
    relay.flush()
    offer_and_run_all(engine)
    assert (len(names_of_calls(engine)), why(client, activity_id)) == (1, "retry_delay")

    patch(client, activity_id, not_before=from_now(hours=1))
    patch(client, activity_id, not_before=None)
    offer_and_run_all(engine)
    assert (len(names_of_calls(engine)), why(client, activity_id)) == (1, "retry_delay")


@pytest.mark.parametrize("how", ["retry", "replay"])
def test_retried_and_replayed_work_waits_for_the_date_that_was_set_before_it_failed(
    api: Any, client: Any, engine: Engine, acme: Tenant, settings: Any, how: str
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 1
    engine.agent.behaviour = lambda request: Accepted()
    blocker = {"type": "credentials", "message": "expired"}
    activity_id, resolution = accept_and_create(engine, acme, "report_blocker", blocker)
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    engine.agent.calls.clear()
    patch(client, activity_id, not_before=from_now(hours=5))
    suspension.resolve_blocker(acme.pk, resolution, actor="test", note="renewed")
    assert engine.status(acme, activity_id) == "needs_review"

    if how == "retry":
        answer = client.post(f"{ACTIVITIES}{activity_id}/retry/")
    else:
        answer = api("admin").post("/api/v1/dead-letters/replay/", {"filter": {"state": "open"}})
    assert answer.status_code in (200, 202), answer.content
    offer_and_run_all(engine)

    assert (engine.status(acme, activity_id), why(client, activity_id)) == ("created", "not_before")
    assert names_of_calls(engine) == []
    patch(client, activity_id, not_before=None)
    offer_and_run_all(engine)
    assert engine.status(acme, activity_id) == "done"


def test_the_successor_of_reassigned_work_keeps_its_due_time(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    patch(client, activity_id, due_at=from_now(minutes=1))

    answer = client.post(
        f"{ACTIVITIES}{activity_id}/reassign/", {"agent_role": "dev", "reason": "It knows this."}
    )
    successor = answer.json()["id"]
    # The reassigned activity has ended.
    assert deadlines.pass_due(datetime.now(UTC) + timedelta(minutes=2)) == 2

    assert engine.get(acme, UUID(successor)).priority == 1
    with tenant_scope(acme.pk):
        assert list(Alert.objects.values_list("kind", "activity_id")) == [("overdue", UUID(successor))]


def test_the_revision_of_rejected_work_keeps_its_due_time(client: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, requires_approval=True)
    patch(client, activity_id, due_at=from_now(minutes=1))
    engine.drain()

    client.post(f"{ACTIVITIES}{activity_id}/reject/", {"notes": "Shorter."})
    (revision,) = client.get(f"{ACTIVITIES}?parent={activity_id}&agent_role=qa").json()["results"]
    # The rejected activity has ended.
    assert deadlines.pass_due(datetime.now(UTC) + timedelta(minutes=2)) == 2

    assert engine.get(acme, UUID(revision["id"])).priority == 1
    with tenant_scope(acme.pk):
        assert list(Alert.objects.values_list("kind", "activity_id")) == [("overdue", UUID(revision["id"]))]


def test_a_step_of_a_pipeline_can_be_delayed_and_the_next_follows_it(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    steps = [{"id": "one", "agent_role": "qa"}, {"id": "two", "agent_role": "qa", "depends_on": ["one"]}]
    versions.save(acme.pk, {"key": "p", "name": "P", "steps": steps}, actor="test")
    with tenant_scope(acme.pk):
        run = start_run(acme.pk, "p", NewRun(), actor="test")
    relay.flush()
    with tenant_scope(acme.pk):
        first = Activity.objects.get(pipeline_run_id=run.pk)

    patch(client, first.pk, not_before=from_now(hours=1))
    offer_and_run_all(engine)
    assert names_of_calls(engine) == []
    patch(client, first.pk, not_before=None)
    offer_and_run_all(engine)

    assert names_of_calls(engine) == ["one", "two"]


def test_a_new_priority_applies_within_a_group_with_common_files(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    engine.serve(acme, max_concurrency=5)
    engine.agent.behaviour = lambda request: Accepted()
    (holder,) = engine.submit(acme, group_key="g", files=["src/a"])
    engine.drain()
    engine.agent.calls.clear()
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    first, second = engine.submit(acme, count=2, group_key="g", files=["src/a"])

    patch(client, second, priority=1)
    assert (why(client, first), why(client, second)) == ("group_cap", "group_cap")
    client.post(f"{ACTIVITIES}{holder}/cancel/")
    engine.drain()

    assert names_of_calls(engine) == ["work 1", "work 0"]


def test_a_new_due_time_of_a_persons_task_moves_its_default_outcome(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    approval = api("admin").post(
        ACTIVITIES,
        {"name": "May it go out?", "human_role": "editor", "is_approval_gate": True, "due_seconds": 3600, "on_timeout": "reject"},
    ).json()  # fmt: skip

    after = patch(client, approval["id"], due_at=from_now(days=2), priority=1)
    assert deadlines.pass_due(datetime.now(UTC) + timedelta(hours=2)) == 0
    assert deadlines.pass_due(datetime.now(UTC) + timedelta(days=3)) == 1

    assert (after["priority"], engine.status(acme, approval["id"])) == (1, "rejected")
    task = api("admin").post(ACTIVITIES, {"name": "Write it", "human_role": "editor"}).json()
    refused = client.patch(f"{ACTIVITIES}{task['id']}/", {"not_before": from_now(hours=1)})
    assert problem(refused, 400, "validation_failed")["errors"][0]["path"] == "not_before"
    patch(client, task["id"], due_at=from_now(hours=1))
    patch(client, task["id"], due_at=None)
    with tenant_scope(acme.pk):
        assert not Deadline.objects.filter(activity_id=task["id"]).exists()


@pytest.mark.parametrize(
    ("rules", "code"), [({"self_approval": False}, "forbidden"), ({"quorum": 2}, "person_required")]
)
def test_only_those_who_may_decide_bring_a_default_outcome_forward(
    api: Any, engine: Engine, acme: Tenant, rules: dict[str, Any], code: str
) -> None:
    asker, program, other = api("operator", person="Ann"), api("operator"), api("operator", person="Bob")
    body = {"name": "May it go out?", "human_role": "editor", "is_approval_gate": True, **rules}
    question = asker.post(ACTIVITIES, {**body, "due_seconds": 3600, "on_timeout": "approve"}).json()["id"]

    client = asker if code == "forbidden" else program
    refused = client.patch(f"{ACTIVITIES}{question}/", {"due_at": from_now(minutes=1)})

    problem(refused, 403, code)
    patch(client, question, due_at=from_now(hours=2), priority=1)
    patch(client, question, due_at=None)
    problem(client.patch(f"{ACTIVITIES}{question}/", {"due_at": from_now(hours=3)}), 403, code)
    patch(other, question, due_at=from_now(minutes=1))
    open_end = asker.post(ACTIVITIES, {**body, "due_seconds": 3600}).json()["id"]
    patch(client, open_end, due_at=from_now(minutes=1))
    work = {
        **body,
        "human_role": None,
        "is_approval_gate": False,
        "agent_role": "qa",
        "requires_approval": True,
    }
    unasked = asker.post(ACTIVITIES, {**work, "due_seconds": 3600, "on_timeout": "approve"}).json()["id"]
    patch(client, unasked, due_at=from_now(minutes=1))


def test_overdue_work_of_an_agent_precedes_other_work(client: Any, engine: Engine, acme: Tenant) -> None:
    running = occupy_the_slot(engine, acme)
    _, late = engine.submit(acme, count=2)
    patch(client, late, due_at=from_now(minutes=1))

    assert deadlines.pass_due(datetime.now(UTC) + timedelta(minutes=2)) == 1
    client.post(f"{ACTIVITIES}{running}/cancel/")
    engine.drain()

    assert names_of_calls(engine) == ["work 1", "work 0"]
    assert engine.get(acme, late).priority == 1
    with tenant_scope(acme.pk):
        assert list(Alert.objects.values_list("kind", "activity_id")) == [("overdue", late)]


@pytest.mark.parametrize("failed", [False, True])
def test_work_that_runs_or_has_failed_at_its_due_time_is_urgent_when_it_runs_again(
    client: Any, engine: Engine, acme: Tenant, failed: bool
) -> None:
    late = datetime.now(UTC) + timedelta(minutes=2)

    def fail(request: object) -> Completed:
        if failed:
            raise PermanentAgentError("broken")
        deadlines.pass_due(late)
        raise RetryableAgentError("broken")

    engine.agent.behaviour = fail
    (activity_id,) = engine.submit(acme, due_at=datetime.now(UTC) + timedelta(minutes=1))
    engine.drain()
    if failed:
        deadlines.pass_due(late)
        assert client.patch(f"{ACTIVITIES}{activity_id}/", {"priority": 3}).status_code == 409
        client.post(f"{ACTIVITIES}{activity_id}/retry/")

    activity = engine.get(acme, activity_id)
    assert (activity.status, activity.priority) == ("created", 1)
    with tenant_scope(acme.pk):
        assert Alert.objects.filter(kind="overdue", activity_id=activity_id).count() == 1
    assert broken_invariants() == []


def test_two_changes_at_once_are_both_applied(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1))
    clients = [api("operator"), api("operator")]

    answers = simultaneously(
        lambda: clients[0].patch(f"{ACTIVITIES}{activity_id}/", {"priority": 2}),
        lambda: clients[1].patch(f"{ACTIVITIES}{activity_id}/", {"expires_at": from_now(days=2)}),
    )

    moments = engine.get(acme, activity_id)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert (moments.priority, moments.expires_at is not None, moments.version) == (2, True, 3)
    assert broken_invariants() == []


def test_a_change_at_the_moment_of_a_claim_is_either_refused_or_applied(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    for _ in range(5):
        (activity_id,) = engine.submit(acme)
        answer, _ = simultaneously(
            lambda activity_id=activity_id: client.patch(
                f"{ACTIVITIES}{activity_id}/", {"not_before": from_now(hours=1)}
            ),
            engine.drain,
        )
        offer_and_run_all(engine)
        expected = "created" if answer.status_code == 200 else "done"
        assert engine.status(acme, activity_id) == expected
        assert wait_reasons.why(acme.pk, activity_id).code == (
            "not_before" if expected == "created" else None
        )
        client.post(f"{ACTIVITIES}{activity_id}/cancel/")
