"""Which activities the statement of claims takes, and with which of their wakes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities import leases, transitions
from activities.models import Activity, ActivityRun, Wake
from activities.states import WakeReason
from tenants import clock
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.engine import Engine, eventually, in_another_thread, somebody_waits_for_a_lock

NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(hours=1), NOW + timedelta(hours=1)


@pytest.fixture
def activity_id(engine: Engine, acme: Tenant) -> UUID:
    return engine.submit(acme)[0]


def claim(tenant: Tenant, activity_id: UUID, *, grant: str = "g1") -> list[Any]:
    by = transitions.Claimant(
        role="qa", worker_id=leases.current().worker_id, timeout_seconds=60, version="", day=clock.today()
    )
    with tenant_scope(tenant.pk):
        rows = transitions.claim([transitions.Claim(activity_id, uuid7(), grant)], tenant_id=tenant.pk, by=by)
    return rows.fetch()


def change(tenant: Tenant, activity_id: UUID, **fields: Any) -> None:
    with tenant_scope(tenant.pk):
        Activity.objects.filter(pk=activity_id).update(**fields)


def requeue(tenant: Tenant, activity_id: UUID) -> None:
    """End the run of the activity, which waits again."""
    with tenant_scope(tenant.pk):
        ActivityRun.objects.filter(activity_id=activity_id).update(status="failed", ended_at=NOW)
        Activity.objects.filter(pk=activity_id).update(status="created")


def add_wake(tenant: Tenant, activity_id: UUID, **fields: Any) -> None:
    with tenant_scope(tenant.pk):
        named = {"reason": WakeReason.MESSAGE, "fingerprint": str(fields.get("cause"))}
        Wake.objects.create(tenant=tenant, activity_id=activity_id, **named, **fields)


@pytest.mark.parametrize(
    ("fields", "is_claimed"),
    [
        ({"expires_at": FUTURE, "not_before": PAST}, True),
        ({"expires_at": PAST}, False),
        ({"status": "cancelled", "finished_at": NOW}, False),
        ({"status": "in_progress"}, False),
        ({"agent_role": "dev"}, False),
    ],
)
def test_only_current_work_of_the_role_is_claimed(
    acme: Tenant, activity_id: UUID, fields: dict[str, Any], is_claimed: bool
) -> None:
    change(acme, activity_id, **fields)

    assert len(claim(acme, activity_id)) == is_claimed


@pytest.mark.parametrize(
    ("cause", "due_at", "is_claimed", "is_taken"),
    [
        ("wake", None, True, True),
        ("wake", PAST, True, True),
        ("wake", FUTURE, False, False),
        ("later", FUTURE, True, False),
        ("budget", FUTURE, True, True),
    ],
)
def test_a_wake_of_the_future_prevents_the_claim_unless_it_may_wait_or_waits_for_money(
    acme: Tenant, activity_id: UUID, cause: str, due_at: datetime | None, is_claimed: bool, is_taken: bool
) -> None:
    add_wake(acme, activity_id, cause=cause, due_at=due_at)

    rows = claim(acme, activity_id)

    assert [len(row.wakes) for row in rows] == ([1 + is_taken] if is_claimed else [])


def test_work_whose_wakes_are_all_taken_or_later_is_not_claimed(acme: Tenant, activity_id: UUID) -> None:
    (row,) = claim(acme, activity_id)
    requeue(acme, activity_id)
    assert claim(acme, activity_id, grant="g2") == []
    add_wake(acme, activity_id, cause="later", due_at=FUTURE)
    assert claim(acme, activity_id, grant="g3") == []
    add_wake(acme, activity_id, cause="session")

    (again,) = claim(acme, activity_id, grant="g4")

    assert (again.fence, len(again.wakes)) == (row.fence + 1, 1)


def test_a_grant_serves_one_run(acme: Tenant, activity_id: UUID) -> None:
    claim(acme, activity_id)
    requeue(acme, activity_id)
    add_wake(acme, activity_id)

    assert claim(acme, activity_id) == []
    assert len(claim(acme, activity_id, grant="g2")) == 1


@pytest.mark.parametrize(("date", "is_claimed"), [(FUTURE, False), (PAST, True)])
def test_a_date_that_is_set_while_the_claim_waits_counts(
    acme: Tenant, activity_id: UUID, date: datetime, is_claimed: bool
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with tenant_scope(acme.pk):
            Activity.objects.filter(pk=activity_id).update(not_before=date)
            waiting = pool.submit(in_another_thread, lambda: claim(acme, activity_id))
            eventually(somebody_waits_for_a_lock)
        assert len(waiting.result()) == is_claimed
