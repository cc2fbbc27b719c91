"""Bulk actions on many activities: counted first, then done by a job that survives the death of its worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, OperationalError
from psycopg.errors import QueryCanceled

from activities import activity_tree, bulk_jobs, cancellation
from activities.admission import rebuilding
from activities.api.activities import ActivityFilter
from activities.api.bulk import ActivityChoiceSerializer
from activities.models import Activity, ActivityEvent, BulkItem, BulkJob, Wake
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from tenants import break_glass, clock, present_rights, tokens
from tenants.context import OWNER, tenant_scope
from tenants.models import ApiToken, Membership, Role, Tenant
from tenants.principals import Principal
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine, in_another_thread, simultaneously
from tests.failed_work import create_dead_letters

BULK, JOBS = "/api/v1/activities/bulk/", "/api/v1/bulk-jobs/"


@pytest.fixture
def client(api: Any, engine: Engine) -> Any:
    return api("operator")


def start_job(client: Any, action: str, count: int, **more: Any) -> dict[str, Any]:
    body = {"action": action, "filter": {"agent_role": "qa"}, "expected_count": count, **more}
    answer = client.post(BULK, body)
    assert answer.status_code == 202, answer.content
    job: dict[str, Any] = answer.json()
    return job


def statuses(tenant: Tenant, **which: Any) -> list[str]:
    with tenant_scope(tenant.pk):
        return sorted(Activity.objects.filter(**which).values_list("status", flat=True))


def test_bulk_filters_are_those_of_the_list() -> None:
    assert set(ActivityChoiceSerializer().fields) == set(ActivityFilter.base_filters)


def test_activities_may_be_chosen_by_id(client: Any, engine: Engine, tenant: Tenant) -> None:
    first, second, third = engine.submit(tenant, "qa", 3)
    named = {"ids": [str(first), str(third), str(uuid4())], "status": ["created"]}

    counted = client.post(BULK, {"action": "cancel", "filter": named, "dry_run": True}).json()
    start_job(client, "cancel", 2, filter=named)
    bulk_jobs.work()

    assert counted["count"] == 2
    assert [engine.status(tenant, each) for each in (first, second, third)] == [
        "cancelled",
        "created",
        "cancelled",
    ]
    listed = client.get(f"/api/v1/activities/?ids={first},{second}").json()["results"]
    assert {each["id"] for each in listed} == {str(first), str(second)}
    assert client.get("/api/v1/activities/?ids=none").status_code == 400
    for ids in ([], ["none"], str(first), [str(uuid4())] * 1001):
        answer = client.post(BULK, {"action": "cancel", "filter": {"ids": ids}, "dry_run": True})
        assert answer.status_code == 400


def test_a_dry_run_counts_and_changes_nothing(client: Any, engine: Engine, tenant: Tenant) -> None:
    engine.submit(tenant, count=12)
    engine.submit(tenant, "dev", 3)

    body = {"action": "cancel", "filter": {"agent_role": "qa", "status": ["created"]}, "dry_run": True}
    answer = client.post(BULK, body).json()
    words = client.post(BULK, {**body, "filter": {"search": "work 11"}}).json()

    assert (answer["count"], len(answer["sample"])) == (12, 10)
    assert words["count"] == 1
    assert set(statuses(tenant)) == {"created"}
    assert client.get(JOBS).json()["results"] == []


def test_all_matching_activities_are_cancelled_and_each_result_is_listed(
    client: Any, engine: Engine, tenant: Tenant
) -> None:
    ids = engine.submit(tenant, count=150)
    engine.submit(tenant, "dev", 1)

    job = start_job(client, "cancel", 150, reason="Not needed.")
    with tenant_scope(tenant.pk):
        cancellation.cancel(tenant.pk, ids[0], actor="somebody else")
    assert bulk_jobs.work() == 151  # one of them twice, because it is retried in a separate transaction
    bulk_jobs.work()

    ended = client.get(job["link"]).json()
    assert (ended["status"], ended["done"], ended["skipped"], ended["failed"]) == ("completed", 149, 1, 0)
    assert ended["remaining"] == 0
    assert ended["rate"] > 0
    assert statuses(tenant, agent_role="qa") == ["cancelled"] * 150
    assert statuses(tenant, agent_role="dev") == ["created"]
    (skipped,) = client.get(f"{job['link']}items/?state=skipped").json()["results"]
    assert skipped["activity"] == str(ids[0])
    assert skipped["error"]["code"] == "transition_refused"
    assert engine.get(tenant, ids[1]).cancel_reason == "Not needed."
    with tenant_scope(tenant.pk):
        wakes = Wake.objects.filter(activity_id__in=ids).values_list("state", flat=True)
        assert list(wakes) == ["consumed"] * 150


def test_a_cancelled_activity_leaves_the_admission_queue(client: Any, engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.submit(tenant, count=5)

    start_job(client, "cancel", 5)
    bulk_jobs.work()

    engine.drain()
    assert engine.agent.calls == []
    assert statuses(tenant) == ["cancelled"] * 5


def test_cancelling_work_that_awaits_approval_cancels_its_gate(
    client: Any, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    client.post("/api/v1/activities/", {"name": "x", "agent_role": "qa", "requires_approval": True})
    engine.drain()
    assert statuses(tenant) == ["awaiting_approval", "created"]

    start_job(client, "cancel", 1)
    bulk_jobs.work()

    assert statuses(tenant) == ["cancelled", "cancelled"]


def test_failed_work_is_retried(client: Any, engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    create_dead_letters(tenant, 120)
    running = start_job(client, "retry", 120)

    bulk_jobs.work()
    engine.drain()

    assert client.get(running["link"]).json()["done"] == 120
    assert statuses(tenant) == ["done"] * 120
    assert {letter["state"] for letter in client.get("/api/v1/dead-letters/").json()["results"]} == {
        "replayed"
    }


def test_work_is_reassigned(client: Any, engine: Engine, tenant: Tenant) -> None:
    engine.submit(tenant, count=3)

    job = start_job(client, "reassign", 3, agent_role="dev", reason="Overloaded.")
    bulk_jobs.work()

    assert client.get(job["link"]).json()["done"] == 3
    assert statuses(tenant, agent_role="dev") == ["created"] * 3
    assert statuses(tenant, agent_role="qa") == ["reassigned"] * 3


def test_waiting_work_moves_to_its_new_place_in_the_queue(
    client: Any, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, max_concurrency=1)
    ids = engine.submit(tenant, count=4)
    late = engine.submit(tenant, count=1, priority=10, group_key=None)

    client.post(
        BULK,
        {"action": "priority", "filter": {"search": "work 3"}, "priority": "urgent", "expected_count": 1},
    )
    bulk_jobs.work()
    engine.drain()

    assert engine.get(tenant, ids[3]).priority < 5
    assert [call.activity_id for call in engine.agent.calls].index(ids[3]) <= 1
    assert len(engine.agent.calls) == len([*ids, *late])


def test_a_new_priority_of_what_a_person_has_claimed_is_in_its_history(
    client: Any, engine: Engine, tenant: Tenant
) -> None:
    task = client.post("/api/v1/activities/", {"name": "Call", "human_role": "editor"}).json()
    claimed = client.post(f"{task['link']}start/").json()

    client.post(
        BULK, {"action": "priority", "filter": {"ids": [task["id"]]}, "priority": 3, "expected_count": 1}
    )
    bulk_jobs.work()

    changed = client.get(task["link"]).json()
    assert (changed["priority"], changed["version"]) == (3, claimed["version"] + 1)


def test_a_new_priority_of_what_an_agent_works_on_is_in_its_history(
    client: Any, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    (activity_id,) = engine.submit(tenant)
    link = f"/api/v1/activities/{activity_id}/"
    answers: list[Any] = []

    def reprioritise(request: AgentRequest) -> AgentResult:
        before = client.get(link)
        start_job(client, "priority", 1, priority=3)
        in_another_thread(bulk_jobs.work)
        answers.extend([before, client.get(link, HTTP_IF_NONE_MATCH=before.headers["ETag"])])
        return Completed(Output(content="done"))

    engine.agent.behaviour = reprioritise
    engine.drain()

    before, after = answers
    assert (before.status_code, after.status_code) == (200, 200)
    assert (after.json()["priority"], after.json()["version"]) == (3, before.json()["version"] + 1)
    with tenant_scope(tenant.pk):
        events = ActivityEvent.objects.filter(activity_id=activity_id).order_by("seq")
        assert list(events.values_list("verb", flat=True)) == ["submit", "start", "reschedule", "complete"]


def test_a_job_with_an_outdated_count_does_nothing(client: Any, engine: Engine, tenant: Tenant) -> None:
    engine.submit(tenant)

    body = {"action": "cancel", "filter": {"agent_role": "qa"}, "expected_count": 2}
    refused = problem(client.post(BULK, body), 409, "count_changed")

    assert refused["count"] == 1
    assert refused["detail"] == "The filter now matches 1 activity, not 2. Review them again."
    with tenant_scope(tenant.pk):
        assert not BulkJob.objects.exists()


@in_one_test(
    ("body", "path"),
    [
        ({"action": "cancel", "filter": {}, "dry_run": True}, "filter"),
        ({"action": "cancel", "filter": {"colour": "red"}, "dry_run": True}, "filter.colour"),
        ({"action": "cancel", "filter": {"status": "x"}, "dry_run": True}, "filter.status"),
        ({"action": "cancel", "filter": {"parent": "x"}, "dry_run": True}, "filter.parent"),
        ({"action": "explode", "filter": {"step": "a"}, "dry_run": True}, "action"),
        ({"action": "cancel", "filter": {"step": "a"}}, "expected_count"),
        ({"action": "cancel", "filter": {"step": "a"}, "dry_run": True, "expected_count": 1}, "expected_count"),
        ({"action": "cancel", "filter": {"step": "a"}, "dry_run": True, "priority": 3}, "priority"),
        ({"action": "cancel", "filter": {"step": "a"}, "dry_run": True, "agent_role": "qa"}, "agent_role"),
        ({"action": "priority", "filter": {"step": "a"}, "dry_run": True}, "priority"),
        ({"action": "reassign", "filter": {"step": "a"}, "dry_run": True, "agent_role": "qa"}, "reason"),
        ({"action": "reassign", "filter": {"step": "a"}, "dry_run": True, "reason": "x"}, "agent_role"),
    ],
)  # fmt: skip
def test_an_invalid_request_names_its_error(client: Any, body: dict[str, Any], path: str) -> None:
    assert path in {
        error["path"] for error in problem(client.post(BULK, body), 400, "validation_failed")["errors"]
    }


def test_bulk_jobs_need_an_operator_and_are_hidden_from_other_tenants(
    api: Any, client: Any, other_tenant: Tenant, engine: Engine, tenant: Tenant
) -> None:
    engine.submit(tenant, count=2)
    job = start_job(client, "cancel", 2)
    stranger = api("admin", other_tenant)
    body = {"action": "cancel", "filter": {"agent_role": "qa"}, "dry_run": True}

    problem(api("reviewer").post(BULK, body), 403, "forbidden")
    assert stranger.post(BULK, body).json()["count"] == 0
    problem(stranger.get(job["link"]), 404, "not_found")
    problem(stranger.get(f"{job['link']}items/"), 404, "not_found")
    problem(stranger.post(f"{job['link']}cancel/"), 404, "not_found")
    assert stranger.get(JOBS).json()["results"] == []


def test_a_cancelled_job_leaves_the_remaining_activities_unchanged(
    client: Any, engine: Engine, tenant: Tenant
) -> None:
    engine.submit(tenant, count=150)
    job = start_job(client, "cancel", 150)

    bulk_jobs.process_portion(tenant.pk, UUID(job["id"]))
    stopped = client.post(f"{job['link']}cancel/").json()
    bulk_jobs.work()

    assert (stopped["status"], stopped["done"], stopped["remaining"]) == ("cancelled", 100, 50)
    assert statuses(tenant) == ["cancelled"] * 100 + ["created"] * 50
    assert client.post(f"{job['link']}cancel/").status_code == 200


def test_a_worker_that_dies_in_a_portion_loses_nothing_and_repeats_nothing(
    client: Any, engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(tenant, count=150)
    job = start_job(client, "cancel", 150)
    real, calls = bulk_jobs._record, []

    def die(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise OperationalError("killed")
        real(*arguments)

    monkeypatch.setattr(bulk_jobs, "_record", die)
    bulk_jobs.process_portion(tenant.pk, UUID(job["id"]))
    with pytest.raises(OperationalError):
        bulk_jobs.process_portion(tenant.pk, UUID(job["id"]))
    assert statuses(tenant).count("cancelled") == 100
    bulk_jobs.work()

    assert client.get(job["link"]).json()["done"] == 150
    with tenant_scope(tenant.pk):
        assert ActivityEvent.objects.filter(verb="cancel").count() == 150


def test_an_activity_that_the_database_refuses_is_reported_and_does_not_stop_the_others(
    client: Any, engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = engine.submit(tenant, count=3)
    job = start_job(client, "priority", 3, priority=1)
    other = start_job(client, "priority", 3, priority=2)
    lock = activity_tree.lock

    def refuse(tenant_id: UUID, locked: Any) -> Any:
        if ids[1] in locked:
            raise IntegrityError("a constraint")
        return lock(tenant_id, locked)

    monkeypatch.setattr(activity_tree, "lock", refuse)
    bulk_jobs.work()

    for each in (job, other):
        ended = client.get(each["link"]).json()
        assert (ended["status"], ended["done"], ended["failed"]) == ("completed", 2, 1)
    assert engine.get(tenant, ids[0]).priority == 2


def test_activities_that_take_too_long_together_are_processed_alone(
    client: Any, engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(tenant, count=3)
    job = start_job(client, "cancel", 3)
    together = bulk_jobs._TOGETHER["cancel"]

    def time_out(job: BulkJob, ids: Any) -> Any:
        if len(ids) > 1:
            raise OperationalError("statement timeout") from QueryCanceled("statement timeout")
        return together(job, ids)

    monkeypatch.setitem(bulk_jobs._TOGETHER, "cancel", time_out)
    bulk_jobs.work()

    assert client.get(job["link"]).json()["done"] == 3


def test_an_activity_that_always_takes_too_long_holds_up_no_others_and_fails_at_the_second_time(
    client: Any, engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, *_ = sorted(engine.submit(tenant, count=3))
    job = start_job(client, "reassign", 3, agent_role="dev", reason="Overloaded.")
    reassign, tried = bulk_jobs._ALONE["reassign"], []

    def time_out(job: BulkJob, activity_id: UUID) -> None:
        tried.append(activity_id)
        if activity_id == slow:
            raise OperationalError("statement timeout") from QueryCanceled("statement timeout")
        reassign(job, activity_id)

    monkeypatch.setitem(bulk_jobs._ALONE, "reassign", time_out)
    bulk_jobs.work()

    ended = client.get(job["link"]).json()
    assert (ended["status"], ended["done"], ended["failed"]) == ("completed", 2, 1)
    assert [tried[0], tried[-1], len(tried)] == [slow, slow, 4]
    (item,) = client.get(f"{job['link']}items/?state=failed").json()["results"]
    assert item["error"]["code"] == "timed_out"


def test_a_failing_job_does_not_stop_other_jobs(
    client: Any, engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(tenant, count=2)
    broken, other = start_job(client, "cancel", 2), start_job(client, "cancel", 2)
    together = bulk_jobs.apply_to_all

    def break_down(job: BulkJob, activities: Any) -> Any:
        if str(job.pk) == broken["id"]:
            raise LookupError("a mistake of ours")
        return together(job, activities)

    monkeypatch.setattr(bulk_jobs, "apply_to_all", break_down)
    bulk_jobs.work()

    assert client.get(other["link"]).json()["status"] == "completed"
    assert client.get(broken["link"]).json()["done"] == 0


def test_two_workers_at_once_process_each_activity_once(client: Any, engine: Engine, tenant: Tenant) -> None:
    engine.submit(tenant, count=250)
    job = start_job(client, "cancel", 250)

    simultaneously(*[bulk_jobs.work for _ in range(3)])
    bulk_jobs.work()

    assert client.get(job["link"]).json()["done"] == 250
    with tenant_scope(tenant.pk):
        assert ActivityEvent.objects.filter(verb="cancel").count() == 250
        assert BulkItem.objects.filter(state="done").count() == 250


def test_activities_that_end_meanwhile_are_skipped(client: Any, engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.submit(tenant, count=60)
    job = start_job(client, "cancel", 60)

    simultaneously(bulk_jobs.work, engine.drain)
    bulk_jobs.work()
    rebuilding.rebuild()

    job_now = client.get(job["link"]).json()
    after = statuses(tenant)
    assert (job_now["status"], job_now["remaining"], job_now["failed"]) == ("completed", 0, 0)
    assert job_now["done"] == after.count("cancelled")
    assert job_now["skipped"] == after.count("done")


def test_the_rest_of_a_job_is_refused_after_its_creator_has_lost_the_right(
    api: Any, engine: Engine, tenant: Tenant
) -> None:
    engine.submit(tenant, count=101)
    client = api("operator", person="otto")
    job = start_job(client, "cancel", 101)
    reassigning = start_job(client, "reassign", 101, agent_role="dev", reason="Overloaded.")

    bulk_jobs.process_portion(tenant.pk, UUID(job["id"]))
    with tenant_scope(tenant.pk):
        Membership.objects.update(role="reviewer")
    bulk_jobs.work()

    ended = client.get(job["link"]).json()
    assert (ended["status"], ended["done"], ended["failed"]) == ("completed", 100, 1)
    assert client.get(reassigning["link"]).json()["failed"] == 101
    (item,) = client.get(f"{job['link']}items/?state=failed").json()["results"]
    assert item["error"] == {
        "code": "forbidden",
        "message": f"The creator of the job, {ended['created_by']}, no longer has the role operator, or the token is no "
        "longer valid.",
    }
    assert statuses(tenant).count("created") == 1


@in_one_test("change", ["revoke", "expire", "end_membership", "disable", "delete", "close_break_glass"])
def test_a_job_has_the_present_rights_of_its_credential(tenant: Tenant, change: str) -> None:
    user = User.objects.create_user(f"of-{change}", is_superuser=change == "close_break_glass")
    who = Principal(tenant.pk, tenant.slug, Role.OPERATOR, "user:x", user_id=user.pk)
    with tenant_scope(tenant.pk):
        if change in ("revoke", "expire"):
            token, _ = tokens.create(tenant, "operator", "x")
            who = replace(who, token_id=token.pk)
        elif change != "close_break_glass":
            membership = Membership.objects.create(tenant=tenant, user=user, role="operator")
    if change == "close_break_glass":
        glass = break_glass.open_for(user, tenant.slug, "to cancel many activities")
    before = present_rights.role_of(tenant.pk, who.credential)

    with tenant_scope(tenant.pk):
        if change == "revoke":
            tokens.revoke(token)
        elif change == "expire":
            ApiToken.objects.filter(pk=token.pk).update(expires_at=clock.now())
        elif change == "end_membership":
            membership.delete()
    if change == "disable":
        User.objects.filter(pk=user.pk).update(is_active=False)
    elif change == "delete":
        User.objects.using(OWNER).filter(pk=user.pk).delete()
    elif change == "close_break_glass":
        break_glass.end(user, glass.pk)

    assert before in (Role.OPERATOR, Role.ADMIN)
    assert present_rights.role_of(tenant.pk, who.credential) is None
