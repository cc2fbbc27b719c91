"""The statement that stores a result refuses one that comes too late, whatever was read before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from activities import cancellation, outputs, rescheduling, transitions
from activities.exceptions import RunSuperseded
from activities.execution import request as execution_request
from activities.execution import results
from activities.models import OutputSpool
from agents.contracts import Completed, Output
from tenants import clock
from tenants.context import APP, SYSTEM, tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.engine import Engine, eventually, somebody_waits_for_a_lock
from tests.spending import run_token_of

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

LATE = Completed(Output(content="late"))


def claim(engine: Engine, tenant: Tenant, activity_id: UUID, grant: str) -> Any:
    with tenant_scope(tenant.pk):
        by = transitions.Claimant(
            role="qa", worker_id=engine.lease.worker_id, timeout_seconds=60, version="", day=clock.today()
        )
        claims = [transitions.Claim(activity_id, uuid7(), grant)]
        rows = transitions.claim(claims, tenant_id=tenant.pk, by=by).fetch()
    return rows[0] if rows else None


@pytest.mark.parametrize("what", ["another run has taken over", "it was cancelled"])
def test_a_result_that_waits_for_the_transaction_that_ends_its_run_is_refused(
    engine: Engine, acme: Tenant, what: str
) -> None:
    """Both have read a live run. The statement of the result waits for the row, which has changed by then."""
    (activity_id,) = engine.submit(acme)
    engine.drain()
    first = run_token_of(acme, activity_id)
    moved, seen = Event(), Event()

    def ends_it() -> None:
        with tenant_scope(acme.pk):
            if what == "it was cancelled":
                cancellation.cancel(acme.pk, activity_id, actor="Ann")
            else:
                results.record_stalled(first)
                with connections[APP].cursor() as cursor:  # the next claim, in the same moment
                    cursor.execute(
                        "UPDATE activities_activity SET status = 'assigned', fence = fence + 1 WHERE id = %s",
                        [activity_id],
                    )
                    cursor.execute(
                        "UPDATE activities_activity SET status = 'in_progress' WHERE id = %s", [activity_id]
                    )
            moved.set()
            assert seen.wait(60), "the result never came to wait"
        connections.close_all()

    def reports() -> BaseException | None:
        assert moved.wait(60)
        try:
            results.record_completed(first, LATE, needs_approval=False)
        except RunSuperseded as refusal:
            return refusal
        finally:
            connections.close_all()
        return None

    with ThreadPoolExecutor(2) as pool:
        ending, late = pool.submit(ends_it), pool.submit(reports)
        eventually(somebody_waits_for_a_lock)
        seen.set()
        ending.result()
        refusal = late.result()

    assert isinstance(refusal, RunSuperseded)
    activity = engine.get(acme, activity_id)
    assert (activity.status, activity.output_ref) == (
        ("cancelled", None) if what == "it was cancelled" else ("in_progress", None)
    )


@pytest.mark.parametrize("what", ["another run has taken over", "it was cancelled"])
def test_a_run_that_has_ended_is_not_requeued(engine: Engine, acme: Tenant, what: str) -> None:
    (activity_id,) = engine.submit(acme)
    engine.drain()
    first = run_token_of(acme, activity_id)
    if what == "it was cancelled":
        cancellation.cancel(acme.pk, activity_id, actor="Ann")
    else:
        results.record_stalled(first)
        engine.drain()
    before = engine.get(acme, activity_id)

    with pytest.raises(RunSuperseded), tenant_scope(acme.pk):
        transitions.requeue(first, run_status="failed", error=None, cause="retry")

    after = engine.get(acme, activity_id)
    assert (after.status, after.version) == (before.status, before.version)


def test_the_end_of_a_run_leaves_earlier_runs_as_they_ended(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    engine.drain()
    results.record_stalled(run_token_of(acme, activity_id))
    engine.drain()

    cancellation.cancel(acme.pk, activity_id, actor="Ann")

    assert [run.status for run in engine.runs(acme, activity_id)] == ["stalled", "cancelled"]


def test_a_suspended_run_is_not_suspended_again(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    engine.drain()
    run = run_token_of(acme, activity_id)

    with tenant_scope(acme.pk):
        assert transitions.suspend(run, tool="one") is not None
        assert transitions.suspend(run, tool="another") is None

    assert engine.runs(acme, activity_id)[0].ended_by_tool == "one"


def test_a_grant_is_good_for_one_claim_even_if_the_work_waits_again(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    engine.drain()
    first = run_token_of(acme, activity_id)
    used = engine.runs(acme, activity_id)[0].grant
    results.record_stalled(first)

    assert claim(engine, acme, activity_id, used) is None
    assert claim(engine, acme, activity_id, "another") is not None


def test_a_claim_that_waits_for_the_row_respects_a_date_that_is_set_meanwhile(
    engine: Engine, acme: Tenant
) -> None:
    """The claim has read that the work may start. Then it waits for the transaction that postpones it."""
    (activity_id,) = engine.submit(acme)
    moved, seen = Event(), Event()

    def puts_off() -> None:
        with tenant_scope(acme.pk):
            wanted = {"not_before": clock.now() + timedelta(days=1)}
            rescheduling.reschedule(acme.pk, activity_id, wanted, actor="Ann")
            moved.set()
            assert seen.wait(60), "the claim never came to wait"
        connections.close_all()

    def claims() -> Any:
        assert moved.wait(60)
        try:
            return claim(engine, acme, activity_id, "granted")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        putting_off, late = pool.submit(puts_off), pool.submit(claims)
        eventually(somebody_waits_for_a_lock)
        seen.set()
        putting_off.result()

    assert late.result() is None
    assert (engine.status(acme, activity_id), engine.agent.calls) == ("created", [])


@pytest.mark.parametrize("what", ["another run has taken over", "it was cancelled"])
def test_work_whose_status_changes_while_its_input_is_fetched_is_not_started(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    engine.agent.behaviour = lambda request: Completed(Output(content="draft"))
    (first,) = engine.submit(acme)
    engine.drain()
    outputs.copy_waiting()
    with tenant_scope(acme.pk):
        OutputSpool.objects.filter(activity_id=first).delete()
    output = engine.get(acme, first).output_ref
    (second,) = engine.submit(acme, input_ref=output)
    fetch = execution_request.fetch

    def meanwhile(*arguments: Any) -> Any:
        if what == "it was cancelled":
            with tenant_scope(acme.pk):
                cancellation.cancel(acme.pk, second, actor="Ann")
        else:
            with connections[SYSTEM].cursor() as cursor:
                cursor.execute("UPDATE activities_activity SET fence = fence + 1 WHERE id = %s", [second])
        return fetch(*arguments)

    monkeypatch.setattr(execution_request, "fetch", meanwhile)
    assert engine.deliver()

    assert len(engine.agent.calls) == 1
    assert engine.status(acme, second) == ("cancelled" if what == "it was cancelled" else "assigned")
