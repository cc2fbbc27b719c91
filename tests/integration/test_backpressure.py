"""Overload: excess work is refused, shed or expired, always counted, and never work that a person waits for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client

from activities import backlog, rescheduling, tasks
from activities.backlog import BacklogFull
from activities.mailboxes import producer
from activities.mailboxes.producer import NewItem
from activities.maintenance import recovery
from activities.models import Activity, ActivityEvent, ApprovalLink, Wake
from activities.submission import NewActivity, submit
from agents import configuration
from agents.models import Agent, AgentConfig
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine, in_another_thread, simultaneously
from tests.open_questions import open_approval

pytestmark = pytest.mark.usefixtures("one_at_a_time", "fresh")

ACTIVITIES, QUEUES = "/api/v1/activities/", "/api/v1/queues/"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    backlog._counts.clear()
    backlog._refused.clear()
    backlog._written.clear()
    monkeypatch.setattr(backlog, "REFUSALS_WRITTEN_SECONDS", 0.0)


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant, max_concurrency=1)
    return tenant


def policy(tenant: Tenant, role: str = "ba", **backlog_fields: Any) -> None:
    """Set the backlog policy of a role. No worker serves ba, so its work waits."""
    with tenant_scope(tenant.pk):
        AgentConfig.objects.update_or_create(
            tenant=tenant, agent_id=role, defaults={"backlog": backlog_fields}
        )
    configuration.forget()


def waiting(engine: Engine, tenant: Tenant, count: int = 1, **fields: Any) -> list[UUID]:
    return engine.submit(tenant, "ba", count, **{"priority": 20, **fields})


def submit_as_the_api(tenant: Tenant, *priorities: int, role: str = "ba") -> list[UUID]:
    """Submit as the API does, in one transaction."""
    with tenant_scope(tenant.pk):
        items = [NewActivity(name="new", agent_role=role, priority=priority) for priority in priorities]
        return [one.id for one in submit(items, actor="token:test")]


def statuses(engine: Engine, tenant: Tenant, ids: list[UUID]) -> list[str]:
    return [engine.status(tenant, one) for one in ids]


def count_of(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        return Activity.objects.for_tenant(tenant.pk).filter(status="created", agent_role="ba").count()


def queue(client: Any, role: str = "ba") -> dict[str, Any]:
    (entry,) = (one for one in client.get(f"{QUEUES}?limit=200").json()["results"] if one["role"] == role)
    return dict(entry)


def test_without_a_policy_a_full_backlog_refuses(api: Any, engine: Engine, acme: Tenant) -> None:
    policy(acme, max_waiting=2)
    waiting(engine, acme, 2)
    client = api()

    refused = client.post(ACTIVITIES, {"name": "x", "agent_role": "ba"})

    problem(refused, 429, "backlog_full")
    assert int(refused["Retry-After"]) > 0
    entry = queue(client)
    assert entry["backlog"] == {"max_waiting": 2, "when_full": "reject", "expire_after_seconds": None}
    assert entry["turned_away"] == {"rejected": 1, "shed": 0, "expired": 0}


def test_the_oldest_work_is_shed_for_any_new_work(api: Any, engine: Engine, acme: Tenant) -> None:
    policy(acme, max_waiting=3, when_full="drop_oldest")
    ids = waiting(engine, acme, 1) + waiting(engine, acme, 2)

    assert api().post(ACTIVITIES, {"name": "x", "agent_role": "ba", "priority": 20}).status_code == 201

    assert statuses(engine, acme, ids) == ["cancelled", "created", "created"]
    with tenant_scope(acme.pk):
        event = ActivityEvent.objects.for_tenant(acme.pk).get(activity_id=ids[0], verb="cancel")
        assert Wake.objects.get(activity_id=ids[0]).state == "consumed"
    assert (event.actor, event.detail) == (
        "backlog", {"reason": "shed", "policy": "drop_oldest", "max_waiting": 3},
    )  # fmt: skip
    assert engine.get(acme, ids[0]).cancel_reason == "shed"
    assert queue(api())["turned_away"] == {"rejected": 0, "shed": 1, "expired": 0}


def test_the_newest_of_the_least_urgent_work_is_shed_only_for_more_urgent_work(
    engine: Engine, acme: Tenant
) -> None:
    policy(acme, max_waiting=3, when_full="evict_lowest")
    ids = waiting(engine, acme, 1) + waiting(engine, acme, 1) + waiting(engine, acme, 1, priority=19)

    submit_as_the_api(acme, 10)
    assert statuses(engine, acme, ids) == ["created", "cancelled", "created"]
    with pytest.raises(BacklogFull):
        submit_as_the_api(acme, 20)
    assert statuses(engine, acme, ids) == ["created", "cancelled", "created"]


def parent(engine: Engine, acme: Tenant) -> dict[str, Any]:
    return {"parent_id": engine.submit(acme, "seo")[0], "link_kind": "subtask"}


KEPT: dict[str, Callable[[Engine, Tenant], dict[str, Any]]] = {
    "more urgent": lambda engine, acme: {"priority": 19},
    "needs an approval": lambda engine, acme: {"requires_approval": True},
    "of a deliverable": lambda engine, acme: {"deliverable_id": uuid4()},
    "a subtask": parent,
}


@pytest.mark.parametrize("why", KEPT)
@pytest.mark.parametrize("when_full", ["drop_oldest", "evict_lowest"])
def test_work_that_somebody_waits_for_is_never_shed_and_does_not_expire(
    engine: Engine, acme: Tenant, why: str, when_full: str
) -> None:
    policy(acme, max_waiting=1, when_full=when_full, expire_after_seconds=60)
    fields = KEPT[why](engine, acme)
    if why == "of a deliverable":
        from pipelines.models import Deliverable

        with tenant_scope(acme.pk):
            fields["deliverable_id"] = Deliverable.objects.create(tenant=acme, name="Report").pk
    (activity_id,) = waiting(engine, acme, **fields)

    with pytest.raises(BacklogFull):
        submit_as_the_api(acme, 1)
    assert engine.status(acme, activity_id) == "created"
    assert engine.get(acme, activity_id).expires_at is None


def test_work_that_has_run_has_children_a_question_or_was_requested_by_a_person_is_never_shed(
    engine: Engine, acme: Tenant
) -> None:
    policy(acme, max_waiting=4, when_full="drop_oldest", expire_after_seconds=60)
    with tenant_scope(acme.pk):
        (requested,) = submit([NewActivity(name="asked", agent_role="ba", priority=20)], actor="user:anna")
    has_run, has_child, has_question = waiting(engine, acme, 3)
    question = open_approval(acme)
    with tenant_scope(acme.pk):
        Activity.objects.for_tenant(acme.pk).filter(pk=has_run).update(fence=1)
        ApprovalLink.objects.create(
            tenant=acme, approval_id=question, activity_id=has_question, state="skipped"
        )
    engine.submit(acme, "seo", parent_id=has_child, link_kind="subtask")

    with pytest.raises(BacklogFull):
        submit_as_the_api(acme, 1)
    assert statuses(engine, acme, [requested.id, has_run, has_child, has_question]) == ["created"] * 4
    assert engine.get(acme, requested.id).expires_at is None


def test_background_messages_are_never_shed_together_with_an_urgent_one_for_later(
    engine: Engine, acme: Tenant
) -> None:
    policy(acme, max_waiting=1, when_full="drop_oldest")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with tenant_scope(acme.pk):
        for message in (
            NewItem(text="now", agent_role="ba", priority=9),
            NewItem(text="tomorrow", agent_role="ba", priority=0, run_after=tomorrow),
        ):
            producer.post(acme.pk, "box", message, actor="token:test")

    with pytest.raises(BacklogFull):
        submit_as_the_api(acme, 1)


def test_steps_of_pipelines_are_never_shed_and_do_not_expire(engine: Engine, acme: Tenant) -> None:
    policy(acme, max_waiting=1, when_full="drop_oldest", expire_after_seconds=60)
    versions.save(
        acme.pk, {"key": "one", "name": "One", "steps": [{"id": "a", "agent_role": "ba"}]}, actor="test"
    )
    start_run(acme.pk, "one", NewRun(priority=20), actor="schedule")

    with pytest.raises(BacklogFull):
        submit_as_the_api(acme, 1)
    with tenant_scope(acme.pk):
        assert Activity.objects.for_tenant(acme.pk).get(agent_role="ba").expires_at is None


def test_either_enough_work_is_shed_or_nothing_changes(engine: Engine, acme: Tenant) -> None:
    policy(acme, max_waiting=2, when_full="drop_oldest")
    ids = waiting(engine, acme, 1) + waiting(engine, acme, 1, priority=1)

    with pytest.raises(BacklogFull):
        submit_as_the_api(acme, 1, 1)
    assert statuses(engine, acme, ids) == ["created", "created"]
    assert len(submit_as_the_api(acme, 1)) == 1


def test_work_of_another_tenant_is_not_shed(engine: Engine, acme: Tenant, other_tenant: Tenant) -> None:
    policy(acme, max_waiting=1, when_full="drop_oldest")
    (others,) = waiting(engine, other_tenant)
    waiting(engine, acme)

    submit_as_the_api(acme, 1)

    assert engine.status(other_tenant, others) == "created"


@pytest.mark.parametrize(("when_full", "shed"), [("reject", 0), ("drop_oldest", 3)])
def test_simultaneous_submissions_never_exceed_a_full_backlog(
    engine: Engine, acme: Tenant, when_full: str, shed: int
) -> None:
    policy(acme, max_waiting=5, when_full=when_full)
    waiting(engine, acme, 4)

    outcomes = simultaneously(*[lambda: submit_as_the_api(acme, 10)] * 4)

    refused = [one for one in outcomes if isinstance(one, BacklogFull)]
    assert [one for one in outcomes if isinstance(one, Exception) and not isinstance(one, BacklogFull)] == []
    assert len(refused) == 3 - shed
    assert count_of(acme) == 5


def test_work_that_a_person_lets_run_now_is_not_shed(engine: Engine, acme: Tenant) -> None:
    policy(acme, max_waiting=1, when_full="drop_oldest")
    (chosen,) = engine.submit(acme, "ba", priority=20)
    rescheduling.run_now(acme.pk, chosen, actor="user:1", reason="The client waits.")

    with pytest.raises(BacklogFull):
        submit_as_the_api(acme, 1)

    assert engine.status(acme, chosen) == "created"


def test_work_that_is_being_claimed_is_not_shed(engine: Engine, acme: Tenant) -> None:
    policy(acme, "qa", max_waiting=1, when_full="drop_oldest")
    (claimed,) = engine.submit(acme, "qa", priority=20)

    with tenant_scope(acme.pk):  # a claim that has not committed yet holds the row
        Activity.objects.for_tenant(acme.pk).select_for_update().get(pk=claimed)
        with pytest.raises(BacklogFull):
            in_another_thread(lambda: submit_as_the_api(acme, 1, role="qa"))

    engine.drain()
    assert engine.status(acme, claimed) == "done"


def test_granted_work_that_is_shed_does_not_start(engine: Engine, acme: Tenant) -> None:
    policy(acme, "qa", max_waiting=1, when_full="drop_oldest")
    engine.serve(acme, "qa")
    (granted,) = engine.submit(acme, "qa", priority=20)
    message = engine.take()
    assert message is not None

    (newcomer,) = submit_as_the_api(acme, 1, role="qa")
    tasks.run(**message)
    engine.drain()

    assert engine.status(acme, granted) == "cancelled"
    assert [request.activity_id for request in engine.agent.calls] == [newcomer]


def test_a_simultaneous_claim_and_shedding_have_one_winner(engine: Engine, acme: Tenant) -> None:
    policy(acme, "qa", max_waiting=1, when_full="drop_oldest")
    engine.serve(acme, "qa")
    for _ in range(5):
        (contested,) = engine.submit(acme, "qa", priority=20)
        message = engine.take() or {}

        delivered, submitted = simultaneously(
            lambda m=message: tasks.run(**m), lambda: submit_as_the_api(acme, 1, role="qa")
        )

        assert delivered is None
        has_run = contested in [request.activity_id for request in engine.agent.calls]
        assert engine.status(acme, contested) == ("done" if has_run else "cancelled")
        assert isinstance(submitted, list | BacklogFull)
        engine.drain()


# --- Expiry ---


def test_background_work_that_nobody_waits_for_expires_after_the_time_of_its_role(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    policy(acme, expire_after_seconds=60)
    before = datetime.now(UTC)
    (stale,) = waiting(engine, acme)
    later = before + timedelta(hours=1)
    (put_off,) = waiting(engine, acme, not_before=later)
    (own,) = waiting(engine, acme, expires_at=later)
    (urgent,) = waiting(engine, acme, priority=10)
    (past,) = waiting(engine, acme, not_before=before - timedelta(hours=1))

    ends = [engine.get(acme, one).expires_at for one in (stale, past, put_off, own, urgent)]

    for end in ends[:2]:
        assert end is not None
        assert timedelta(seconds=59) < end - before < timedelta(seconds=90)
    assert ends[2:] == [later + timedelta(seconds=60), later, None]

    with tenant_scope(acme.pk):
        Activity.objects.for_tenant(acme.pk).filter(pk=stale).update(expires_at=before)
    assert recovery.expire_stale() == 1
    assert engine.get(acme, stale).cancel_reason == "expired"
    assert queue(api())["turned_away"]["expired"] == 1


def test_the_registry_has_a_policy_for_all_tenants_and_a_tenant_its_own(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    Agent.objects.filter(role="ba").update(backlog={"expire_after_seconds": 100, "max_waiting": 7})
    try:
        policy(acme, expire_after_seconds=200)
        waits = [engine.get(one, waiting(engine, one)[0]) for one in (acme, other_tenant)]
        patience = [
            round((one.expires_at - one.created_at).total_seconds()) for one in waits if one.expires_at
        ]

        assert patience == [200, 100]
        assert backlog.policy_of(acme.pk, "ba").max_waiting == 7
    finally:
        Agent.objects.filter(role="ba").update(backlog={})
        configuration.forget()


@pytest.mark.parametrize("seconds", [None, "soon"])
def test_a_time_that_is_no_number_expires_nothing(engine: Engine, acme: Tenant, seconds: Any) -> None:
    policy(acme, expire_after_seconds=seconds)

    assert engine.get(acme, waiting(engine, acme)[0]).expires_at is None


# --- Settings and figures ---


@pytest.mark.parametrize(
    ("settings_of_policy", "status"),
    [
        ({"max_waiting": 5, "when_full": "evict_lowest", "expire_after_seconds": 60}, 200),
        ({"when_full": "drop_newest"}, 400),
        ({"max_waiting": 0}, 400),
        ({"expire_after_seconds": "soon"}, 400),
        ({"more": 1}, 400),
    ],
)
def test_tenants_can_set_their_own_policy(
    api: Any, engine: Engine, acme: Tenant, settings_of_policy: dict[str, Any], status: int
) -> None:
    answer = api().put("/api/v1/agent-configs/ba/", {"backlog": settings_of_policy})

    assert answer.status_code == status
    if status == 200:
        assert answer.json()["backlog"] == settings_of_policy
        assert backlog.policy_of(acme.pk, "ba") == backlog.Policy(5, "evict_lowest", 60)


def test_no_tenant_may_set_a_larger_backlog_than_the_platform_allows(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_BACKLOG = 10
    policy(acme, max_waiting=1000)

    assert backlog.policy_of(acme.pk, "ba").max_waiting == 10


def test_refused_and_shed_work_is_counted_in_the_metrics(engine: Engine, acme: Tenant) -> None:
    policy(acme, max_waiting=1, when_full="drop_oldest")
    waiting(engine, acme)
    submit_as_the_api(acme, 1)
    with pytest.raises(BacklogFull):
        submit_as_the_api(acme, 1)

    text = Client().get("/metrics").content.decode()

    assert 'orchestrator_turned_away_total{reason="shed",role="ba"} 1.0' in text
    assert 'orchestrator_turned_away_total{reason="rejected",role="ba"} 1.0' in text
