"""Runs that their agent has accepted wait without a worker: no seat, no thread, no connection, however many there are.

`benchmarks/held_runs.py` does the same with thousands of runs and two worker processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rest_framework.test import APIClient

from activities import leases
from activities.admission import keys
from activities.maintenance.invariants import examine
from activities.models import ActivityRun
from agents.contracts import Completed
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tests.engine import Engine
from tests.receivers import HttpReceiver, http_receiver

pytestmark = pytest.mark.usefixtures("one_at_a_time")

SEATS, RUNS = 2, 40


@pytest.fixture
def two_seats(database: None) -> Iterator[Engine]:
    running = Engine(["qa", "dev", "seo"], seats=SEATS)
    yield running
    running.close()


@pytest.fixture
def holding(two_seats: Engine, tenant: Tenant, settings: Any) -> Iterator[HttpReceiver]:
    """An agent of `qa` that says 202 to whatever it gets; its tenant may have 40 runs of it. `dev` is done by a function."""
    settings.ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT = frozenset()
    with http_receiver() as receiver:
        receiver.answer = lambda posted: (202, {}, b"{}")
        two_seats.serve(tenant, "qa", adapter="http", endpoint=receiver.url, max_concurrency=RUNS)
        two_seats.serve(tenant, "dev")
        yield receiver


def used(scope: str) -> int:
    """Slots that are taken, as admission counts them."""
    generation = client().get(keys.pointer()).decode()
    return int(client().hget(keys.generation(generation) + "used", scope) or 0)


def open_runs(tenant: Tenant) -> list[ActivityRun]:
    with tenant_scope(tenant.pk):
        return list(ActivityRun.objects.filter(status="running"))


def call_back(job: dict[str, Any], verb: str, body: dict[str, Any]) -> Any:
    caller = APIClient()
    caller.credentials(HTTP_AUTHORIZATION=f"Bearer {job['callback']['token']}")
    return caller.post("/" + job["callback"]["url"].partition("//")[2].partition("/")[2] + f"{verb}/", body)


def test_with_two_seats_twenty_times_as_many_runs_are_open_and_hold_no_seat_thread_or_lease(
    two_seats: Engine, holding: HttpReceiver, tenant: Tenant
) -> None:
    two_seats.submit(tenant, "qa")
    two_seats.drain()  # what is opened once, is open
    threads = threading.active_count()

    two_seats.submit(tenant, "qa", count=RUNS - 1)
    two_seats.drain()

    runs = open_runs(tenant)
    assert len(runs) == len(holding.posted) == RUNS
    assert all(run.accepted_at is not None and run.worker_id is None for run in runs)
    assert used("seat:dev") == 0
    assert two_seats.lease.active == 0
    assert threading.active_count() <= threads


def test_beside_them_work_of_another_role_starts_at_once_and_work_of_the_same_role_as_far_as_its_cap_allows(
    two_seats: Engine, holding: HttpReceiver, tenant: Tenant
) -> None:
    two_seats.submit(tenant, "qa", count=RUNS)
    two_seats.drain()

    (other,) = two_seats.submit(tenant, "dev")
    (over_the_cap,) = two_seats.submit(tenant, "qa")
    assert two_seats.messages() == 1  # nothing had to end, and no time to pass
    two_seats.drain()

    assert two_seats.status(tenant, other) == "done"
    assert two_seats.status(tenant, over_the_cap) == "created"
    assert (
        used(f"pair:{tenant.pk}:qa") == RUNS
    )  # by design: what an agent has accepted counts against the caps
    two_seats.serve(tenant, "qa", adapter="http", endpoint=holding.url, max_concurrency=RUNS + 1)
    two_seats.submit(tenant, "seo")  # says to admission that there is something to do
    two_seats.drain()
    assert len(holding.posted) == RUNS + 1


def test_they_outlive_the_worker_that_started_them_and_all_end_by_their_callbacks(
    two_seats: Engine, holding: HttpReceiver, tenant: Tenant
) -> None:
    two_seats.agent.behaviour = lambda request: Completed()
    started = two_seats.submit(tenant, "qa", count=RUNS)
    two_seats.drain()
    leases.end()
    two_seats.lease = leases.begin(roles=two_seats.roles, concurrency=SEATS, watched=False)

    jobs = [posted.json for posted in holding.posted]
    beats = [call_back(job, "heartbeat", {"progress": "on it"}) for job in jobs]
    ends = [call_back(job, "complete", {"output": {"content": "held"}}) for job in jobs]

    assert {(beat.status_code, beat.json()["stop"]) for beat in beats} == {(200, False)}
    assert {(end.status_code, end.json()["accepted"]) for end in ends} == {(200, True)}
    two_seats.drain()
    assert {two_seats.status(tenant, each) for each in started} == {"done"}
    assert used(f"pair:{tenant.pk}:qa") == 0
    assert examine().violations == []
