"""What is lost between two steps is found again: wakes, slots, messages, Redis, promises of agents."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError
from django.db.models import F
from django.db.models.functions import Now
from psycopg.errors import LockNotAvailable, QueryCanceled

from activities import admission, cancellation, publishing, relay, tasks
from activities.admission import Closed, audit, exchange, rebuilding
from activities.admission.exchange import Exchange, Grants, Offer
from activities.execution import claims, reports, results
from activities.maintenance import recovery
from activities.maintenance.invariants import check
from activities.models import Activity, ActivityRun
from activities.quick_work import HeldGrant
from activities.run_tokens import RunToken
from agents import configuration, credentials
from agents.contracts import Accepted, Completed, Output
from tenants import sweeps
from tenants.context import system_scope, tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tenants.redis import client
from tests.accepted_work import accept_work, calls_of
from tests.engine import Engine, in_another_thread, simultaneously
from tests.integration.recovery.losses import lose
from tests.spending import dollars, make_budget, run_token_of
from tests.upkeep import run_due_jobs

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_recovering_twice_at_once_starts_the_work_once(
    engine: Engine, acme: Tenant, killed_run: ActivityRun
) -> None:
    lose(engine)

    mended = simultaneously(*[recovery.reclaim_runs_of_ended_workers] * 4)
    relay.flush()
    engine.drain()

    assert sum(mended) == 1
    assert len(engine.runs(acme, killed_run.activity_id)) == 2


def test_work_that_was_never_offered_is_offered_by_recovery(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        # The process ends right after its commit.
        dying.setattr("activities.relay.hand_over", lambda what: None)
        (activity_id,) = engine.submit(acme)
    assert engine.messages() == 0
    monkeypatch.setattr("activities.maintenance.recovery.YOUNG_SECONDS", 0.0)

    recovery.offer_forgotten()
    recovery.offer_forgotten()
    assert engine.drain() == 1

    assert engine.status(acme, activity_id) == "done"


def test_work_that_runs_while_it_is_looked_for_is_granted_no_slot_for_nothing(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    (activity_id,) = engine.submit(acme)
    monkeypatch.setattr("activities.maintenance.recovery.YOUNG_SECONDS", 0.0)
    looked = recovery.find_unknown

    def ran_meanwhile(offers: list[Offer]) -> set[UUID]:
        engine.drain()
        return looked(offers)

    monkeypatch.setattr("activities.maintenance.recovery.find_unknown", ran_meanwhile)
    looked_at, _ = recovery.offer_forgotten()

    assert (looked_at, engine.status(acme, activity_id)) == (1, "done")
    assert engine.messages() == 0


def test_only_what_admission_does_not_know_is_offered_again(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(acme, max_concurrency=1)
    granted, *waiting = engine.submit(acme, count=3)
    with monkeypatch.context() as dying:
        dying.setattr("activities.relay.hand_over", lambda what: None)
        (forgotten,) = engine.submit(acme)
    monkeypatch.setattr("activities.maintenance.recovery.YOUNG_SECONDS", 0.0)
    offered: list[UUID] = []
    monkeypatch.setattr(
        "activities.relay.hand_over", lambda what: offered.extend(each.activity_id for each in what.offers)
    )

    looked_at, _ = recovery.offer_forgotten()

    assert looked_at == 4
    assert offered == [forgotten], (granted, waiting)


def test_all_that_waits_is_kept_to_be_offered_while_admission_does_not_answer(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    (activity_id,) = engine.submit(acme)
    engine.take()
    client().flushdb()
    monkeypatch.setattr("activities.maintenance.recovery.YOUNG_SECONDS", 0.0)
    kept: list[UUID] = []
    monkeypatch.setattr(
        "activities.relay.hand_over", lambda what: kept.extend(each.activity_id for each in what.offers)
    )

    recovery.offer_forgotten()

    assert kept == [activity_id]


def test_forgotten_work_is_found_page_by_page(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.maintenance.recovery.YOUNG_SECONDS", 0.0)
    with monkeypatch.context() as dying:
        dying.setattr("activities.relay.hand_over", lambda what: None)
        engine.submit(acme, count=5)

    after, pages = None, []
    while True:
        found, after = recovery.offer_forgotten(after=after, limit=2)
        pages.append(found)
        if after is None:
            break

    assert pages == [2, 2, 1]
    assert engine.drain() == 5


def test_after_redis_was_wiped_nothing_is_lost_and_caps_still_count_what_runs(
    engine: Engine, acme: Tenant
) -> None:
    engine.serve(acme, "qa", max_concurrency=2)
    engine.agent.behaviour = lambda request: Accepted()
    engine.submit(acme, count=5)
    engine.drain()

    client().flushdb()
    with pytest.raises(Closed):
        exchange(Exchange())
    rebuilding.rebuild()
    while_held = exchange(Exchange())
    for run in live_runs():
        token = RunToken(acme.pk, run.activity_id, run.pk, run.fence)
        results.record_completed(token, Completed(Output(content="x")), needs_approval=False, actor="run")
    relay.flush()
    engine.agent.behaviour = lambda request: Completed(Output(content="x"))
    engine.drain()

    assert while_held == []
    with tenant_scope(acme.pk):
        assert set(Activity.objects.values_list("status", flat=True)) == {"done"}


def test_a_message_from_before_the_wipe_starts_nothing(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme)
    message = engine.take()

    client().flushdb()
    rebuilding.rebuild()
    tasks.run(**message)

    assert engine.agent.calls == []


def test_an_agent_that_accepted_and_never_came_back_fails_after_its_timeout(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme, timeout_seconds=60, max_attempts=1)
    engine.drain()
    assert recovery.end_overdue_runs() == 0

    with tenant_scope(acme.pk):
        ActivityRun.objects.update(accepted_at=Now() - timedelta(seconds=61))
    assert recovery.end_overdue_runs() == 1

    failed = engine.get(acme, activity_id)
    assert (failed.status, failed.error["code"]) == ("failed", "agent_timeout")


def test_a_leader_without_the_encryption_keys_ends_an_overdue_run_of_an_agent_with_credentials(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    """Any beat may lead, and has no keys."""
    context = credentials.config_context(acme.pk, "qa")
    engine.serve(acme, "qa", auth_sealed=credentials.seal({"type": "bearer", "token": "t"}, context=context))
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme, timeout_seconds=60, max_attempts=1)
    engine.drain()
    with tenant_scope(acme.pk):
        ActivityRun.objects.update(accepted_at=Now() - timedelta(seconds=61))
    settings.FIELD_ENCRYPTION_KEYS = []
    configuration.forget()

    assert recovery.end_overdue_runs() == 1

    assert engine.status(acme, activity_id) == "failed"


def test_an_overdue_run_of_a_role_that_was_deleted_ends(engine: Engine, acme: Tenant) -> None:
    """The work of an inactive tenant does not keep its role from being deleted."""
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme, timeout_seconds=60)
    engine.drain()
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=activity_id).update(agent_role="deleted-role")
        ActivityRun.objects.update(accepted_at=Now() - timedelta(seconds=61))

    assert recovery.end_overdue_runs() == 1

    assert engine.status(acme, activity_id) == "created"


def test_an_accepted_run_whose_heartbeats_stop_is_started_anew(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_AGENT_SILENT_SECONDS = 60
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme)
    (other_id,) = engine.submit(acme)  # its agent never sends a heartbeat: only the deadline bounds it
    engine.drain()
    clock = iter(
        [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 59.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0, 119.9, 120.0]
    )
    watch = recovery.HeartbeatWatch(recovery.WatchedTime(lambda: next(clock)))

    def beat() -> None:
        with tenant_scope(acme.pk):
            ActivityRun.objects.filter(activity_id=activity_id).update(beats=F("beats") + 1)

    beat()
    found = [recovery.reclaim_silent_runs(watch) for _ in range(7)]
    beat()
    found += [recovery.reclaim_silent_runs(watch) for _ in range(8)]

    assert found == [0] * 14 + [1]
    (run,) = engine.runs(acme, activity_id)
    assert (run.status, run.error["message"]) == ("stalled", "The agent has sent no heartbeat for 60 s.")
    assert [run.status for run in engine.runs(acme, other_id)] == ["running"]


def test_an_agent_that_is_heard_of_between_look_and_verdict_keeps_its_run(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_AGENT_SILENT_SECONDS = 60
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme)
    engine.drain()
    clock = iter([float(second) for second in range(0, 70, 10)])
    watch = recovery.HeartbeatWatch(recovery.WatchedTime(lambda: next(clock)))

    def beat() -> None:
        with tenant_scope(acme.pk):
            ActivityRun.objects.filter(activity_id=activity_id).update(beats=F("beats") + 1)

    beat()
    for _ in range(6):
        assert recovery.reclaim_silent_runs(watch) == 0

    # What confirms the lead comes between the look and what is done about it.
    assert recovery.reclaim_silent_runs(watch, confirm=beat) == 0
    assert [run.status for run in engine.runs(acme, activity_id)] == ["running"]


def test_slots_without_a_run_are_given_back_when_seen_twice(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme)
    message = engine.take()
    admission.start(UUID(message["activity"]), message["grant"])  # the worker died between this and its claim
    slots = rebuilding.SlotAudit()

    first, _ = slots.compare()
    second, _ = slots.compare()

    assert not first
    assert [release.grant for release in second.releases] == [message["grant"]]


def test_the_slot_of_a_cancelled_run_is_in_use_until_its_call_ends(engine: Engine, acme: Tenant) -> None:
    slots, found = rebuilding.SlotAudit(), list[Any]()

    def is_cancelled_meanwhile(request: Any) -> Completed:
        in_another_thread(lambda: cancellation.cancel(acme.pk, request.activity_id, actor="Ann"))
        found.extend(in_another_thread(slots.compare)[0].releases for _ in range(2))
        return Completed(Output(content="too late"))

    engine.agent.behaviour = is_cancelled_meanwhile
    engine.submit(acme)
    engine.drain()

    assert found == [[], []]
    assert audit(withdraw_orphans=False) == []


def test_the_slot_of_a_run_that_a_budget_stopped_is_in_use_until_its_call_ends(
    engine: Engine, acme: Tenant
) -> None:
    make_budget(acme)
    slots, found = rebuilding.SlotAudit(), list[Any]()

    def exceeds_its_budget(request: Any) -> Completed:
        run = run_token_of(acme, request.activity_id)
        assert in_another_thread(lambda: reports.count_usage(run, dollars("1.10")))
        found.extend(in_another_thread(slots.compare)[0].releases for _ in range(2))
        in_another_thread(rebuilding.rebuild)
        found.append([slot.grant for slot in audit(withdraw_orphans=False)])
        found.extend(each.invariant for each in in_another_thread(lambda: check(quiesced=True)))
        return Completed(Output(content="too late"))

    engine.agent.behaviour = exceeds_its_budget
    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert found == [[], [], [engine.runs(acme, activity_id)[0].grant]]
    assert audit(withdraw_orphans=False) == []


def test_the_slot_of_a_cancelled_run_is_released_after_its_call_although_its_own_release_was_lost(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_cancelled_meanwhile(request: Any) -> Completed:
        in_another_thread(lambda: cancellation.cancel(acme.pk, request.activity_id, actor="Ann"))
        monkeypatch.setattr(relay, "release_and_acquire", lambda changes, **seats: Grants())
        return Completed(Output(content="too late"))

    engine.agent.behaviour = is_cancelled_meanwhile
    (activity_id,) = engine.submit(acme)
    engine.drain()
    slots = rebuilding.SlotAudit()

    first, _ = slots.compare()
    second, _ = slots.compare()

    assert not first
    assert [release.activity_id for release in second.releases] == [activity_id]


def test_a_claim_that_waited_until_its_slot_was_given_back_is_undone(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CLAIM_SECONDS", 0.0)
    claim, slots = claims._claim, rebuilding.SlotAudit()

    def behind_a_locked_row(*named: Any) -> Any:
        slots.compare()
        withdrawn, _ = slots.compare()
        exchange(withdrawn)
        return claim(*named)

    (activity_id,) = engine.submit(acme)
    with monkeypatch.context() as locked:
        locked.setattr(claims, "_claim", behind_a_locked_row)
        engine.drain()
    before = (engine.status(acme, activity_id), engine.runs(acme, activity_id))
    monkeypatch.setattr("activities.maintenance.recovery.YOUNG_SECONDS", 0.0)
    recovery.offer_forgotten()
    relay.flush()
    engine.drain()

    assert before == ("created", [])
    assert [run.status for run in engine.runs(acme, activity_id)] == ["completed"]


def test_a_claim_whose_answer_came_when_its_slot_was_gone_calls_nobody_and_is_handed_back(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    engine.agent.behaviour = lambda request: called.append(request) or Completed(Output(content="x"))
    with_slots, looked = claims.with_slots, []

    def while_the_server_is_away(held: Sequence[HeldGrant]) -> list[HeldGrant]:
        looked.append(held)
        if len(looked) == 2:  # after the commit
            (grant,) = (each.grant for each in held)
            exchange(Exchange(releases=[rebuilding.Release(grant.activity_id, grant.grant)]))
            monkeypatch.setattr(claims, "CLAIM_SECONDS", 0.0)
        return with_slots(held)

    (activity_id,) = engine.submit(acme)
    with monkeypatch.context() as away:
        away.setattr(claims, "with_slots", while_the_server_is_away)
        engine.drain()
    before = (
        len(called),
        engine.status(acme, activity_id),
        [run.status for run in engine.runs(acme, activity_id)],
    )
    engine.make_due(acme)
    engine.drain()

    assert before == (0, "created", ["failed"])
    assert [run.status for run in engine.runs(acme, activity_id)] == ["failed", "completed"]
    with tenant_scope(acme.pk):
        assert Activity.objects.get(pk=activity_id).attempts == 1


def test_claims_that_waited_and_kept_their_slots_go_on(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CLAIM_SECONDS", 0.0)

    ids = engine.submit(acme, count=3)
    engine.drain()

    assert {engine.status(acme, pk) for pk in ids} == {"done"}


def test_a_seat_that_an_accepted_run_could_not_give_back_is_given_back(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    with monkeypatch.context() as away:
        away.setattr("activities.admission.accept", lambda *slot: False)
        engine.submit(acme)
        engine.drain()
    (before,) = audit(withdraw_orphans=False)

    rebuilding.SlotAudit().compare()

    (after,) = audit(withdraw_orphans=False)
    assert (before.seated, after.seated, after.grant) == (True, False, before.grant)


@pytest.mark.parametrize("instead", ["nothing", "waiting work", "another grant"])
def test_slots_of_live_runs_that_redis_forgot_are_held_again_when_seen_twice(
    engine: Engine, acme: Tenant, instead: str
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme)
    engine.drain()
    (run,) = engine.runs(acme, activity_id)
    release, offer = rebuilding.Release(activity_id, run.grant), Offer.of(engine.get(acme, activity_id))
    # As after a failover to a replica that had an earlier state.
    granted = exchange(Exchange(releases=[release], offers=[offer] if instead == "another grant" else []))
    if instead == "waiting work":
        rebuilding._restore("", offer=[offer])

    slots, held = rebuilding.SlotAudit(), list[Any]()
    for _ in range(3):
        slots.compare()
        held.append([(slot.activity_id, slot.grant) for slot in audit(withdraw_orphans=False)])

    before = [(grant.activity_id, grant.grant) for grant in granted]
    assert held == [before, [(activity_id, run.grant)], [(activity_id, run.grant)]]
    assert not exchange(Exchange(releases=[release])), "it also waited"


def test_a_grant_whose_message_was_lost_is_published_again(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_REPUBLISH_SECONDS = -1.0
    (activity_id,) = engine.submit(acme)
    engine.take()  # and drop it

    _, again = rebuilding.SlotAudit().compare()
    publishing.publish(again)
    engine.drain()

    assert engine.status(acme, activity_id) == "done"


def test_work_past_its_expiry_never_starts(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=activity_id).update(expires_at=Now() - timedelta(seconds=1))

    tasks.run(**message)
    recovery.expire_stale()

    expired = engine.get(acme, activity_id)
    assert (expired.status, expired.cancel_reason, engine.agent.calls) == ("cancelled", "expired", [])


def test_work_that_cannot_be_expired_keeps_no_other_from_its_expiry(
    engine: Engine, acme: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    ids = [engine.submit(tenant)[0] for tenant in (acme, other_tenant)]
    with system_scope():
        for age, activity_id in zip((2, 1), ids, strict=True):
            Activity.objects.filter(pk=activity_id).update(expires_at=Now() - timedelta(hours=age))
    expire = cancellation.expire

    def expire_others(tenant_id: UUID, activity_id: UUID, *, actor: str) -> bool:
        if tenant_id == acme.pk:
            raise OperationalError("lock timeout") from LockNotAvailable("lock timeout")
        return expire(tenant_id, activity_id, actor=actor)

    monkeypatch.setattr(cancellation, "expire", expire_others)

    # `manage.py recover` repeats this until there is nothing left to do.
    assert [recovery.expire_stale() for _ in range(2)] == [1, 0]

    assert [engine.status(acme, ids[0]), engine.status(other_tenant, ids[1])] == ["created", "cancelled"]


def test_work_whose_expiry_always_takes_too_long_delays_the_work_behind_it_by_one_turn(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = engine.submit(acme, count=2)
    with tenant_scope(acme.pk):
        for age, activity_id in ((2, slow), (1, other)):
            Activity.objects.filter(pk=activity_id).update(expires_at=Now() - timedelta(hours=age))
    expire = cancellation.expire

    def expire_others(tenant_id: UUID, activity_id: UUID, *, actor: str) -> bool:
        if activity_id == slow:
            raise OperationalError("statement timeout") from QueryCanceled("statement timeout")
        return expire(tenant_id, activity_id, actor=actor)

    monkeypatch.setattr(cancellation, "expire", expire_others)

    for _ in range(2):  # each turn ends there, because the server may be overloaded
        with pytest.raises(OperationalError):
            recovery.expire_stale()

    assert [engine.status(acme, activity_id) for activity_id in (slow, other)] == ["created", "cancelled"]


@pytest.mark.parametrize("repair", ["reclaim_runs_of_ended_workers", "end_overdue_runs"])
def test_runs_that_cannot_be_ended_keep_no_later_run_from_its_end(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, repair: str
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    engine.agent.behaviour = lambda request: Accepted()
    ids = engine.submit(acme, count=3)
    engine.drain()
    with tenant_scope(acme.pk):
        if repair == "end_overdue_runs":
            ActivityRun.objects.update(accepted_at=Now() - timedelta(days=1))
        else:
            ActivityRun.objects.update(worker_id=uuid7())
        last = ActivityRun.objects.order_by("pk").last()
    record = {name: getattr(results, name) for name in ("record_failed", "record_stalled")}

    def record_last(name: str, run: RunToken, *arguments: Any, **named: Any) -> Any:
        if run.run_id != last.pk:
            raise ZeroDivisionError
        return record[name](run, *arguments, **named)

    for name in record:
        monkeypatch.setattr(results, name, partial(record_last, name))

    assert getattr(recovery, repair)() == 1

    left = sorted(ids, key=lambda activity_id: activity_id == last.activity_id)
    assert [engine.status(acme, activity_id) for activity_id in left] == [
        "in_progress",
        "in_progress",
        "created",
    ]


def test_a_full_pass_of_the_keeper_mends_everything_at_once(
    engine: Engine, acme: Tenant, killed_run: ActivityRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(engine)
    client().flushdb()
    monkeypatch.setattr("activities.admission.rebuilding.SETTLE_SECONDS", 0.0)

    run_due_jobs()
    relay.flush()
    engine.drain()

    assert engine.status(acme, killed_run.activity_id) == "done"


def live_runs() -> list[ActivityRun]:
    with system_scope():
        return list(ActivityRun.objects.filter(status="running"))


def test_what_is_woken_before_its_slot_came_back_runs_as_soon_as_it_has(
    api: Any, engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone who wakes it may be another process than the one that gives the slot back, and be faster."""
    engine.agent.behaviour = lambda request: Accepted()
    activity_id, agent = accept_work(engine, acme)
    put, late = relay._relay.put, list[Exchange]()
    with monkeypatch.context() as slow:
        slow.setattr(relay._relay, "put", lambda what: late.append(what) if what.releases else put(what))
        review = agent.create_with("request_human_review", question="May I?", human_role="legal")
        answer = api("operator").post(
            f"/api/v1/activities/{review}/review/", {"approved": True, "feedback": "Yes."}, format="json"
        )
        assert answer.status_code == 200, answer.json()
        engine.drain()
        assert late
        assert len(calls_of(engine, activity_id)) == 1

    for what in late:
        relay.hand_over(what)
    engine.drain()

    assert [call.wake_reason for call in calls_of(engine, activity_id)] == ["new_task", "review_approved"]
