"""Accepted runs need no worker: they occupy no seat, thread or connection, however many there are.

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
def accepting_agent(two_seats: Engine, tenant: Tenant, settings: Any) -> Iterator[HttpReceiver]:
    """An HTTP agent of `qa` that accepts everything, with up to 40 runs; `dev` is an inline function."""
    settings.ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT = frozenset()
    with http_receiver() as receiver:
        receiver.answer = lambda posted: (202, {}, b"{}")
        two_seats.serve(tenant, "qa", adapter="http", endpoint=receiver.url, max_concurrency=RUNS)
        two_seats.serve(tenant, "dev")
        yield receiver


def used_slots(scope: str) -> int:
    """The used slots of a scope in admission."""
    generation = client().get(keys.pointer()).decode()
    return int(client().hget(keys.generation(generation) + "used", scope) or 0)


def open_runs(tenant: Tenant) -> list[ActivityRun]:
    with tenant_scope(tenant.pk):
        return list(ActivityRun.objects.filter(status="running"))


def call_back(job: dict[str, Any], verb: str, body: dict[str, Any]) -> Any:
    caller = APIClient()
    caller.credentials(HTTP_AUTHORIZATION=f"Bearer {job['callback']['token']}")
    return caller.post("/" + job["callback"]["url"].partition("//")[2].partition("/")[2] + f"{verb}/", body)


def test_two_seats_start_forty_accepted_runs_that_hold_no_seat_thread_or_lease(
    two_seats: Engine, accepting_agent: HttpReceiver, tenant: Tenant
) -> None:
    two_seats.submit(tenant, "qa")
    two_seats.drain()  # opens what is opened once
    threads = threading.active_count()

    two_seats.submit(tenant, "qa", count=RUNS - 1)
    two_seats.drain()

    runs = open_runs(tenant)
    assert len(runs) == len(accepting_agent.posted) == RUNS
    assert all(run.accepted_at is not None and run.worker_id is None for run in runs)
    assert used_slots("seat:dev") == 0
    assert two_seats.lease.active == 0
    assert threading.active_count() <= threads


def test_accepted_runs_do_not_delay_other_roles_but_count_against_their_cap(
    two_seats: Engine, accepting_agent: HttpReceiver, tenant: Tenant
) -> None:
    two_seats.submit(tenant, "qa", count=RUNS)
    two_seats.drain()

    (other,) = two_seats.submit(tenant, "dev")
    (over_the_cap,) = two_seats.submit(tenant, "qa")
    assert two_seats.messages() == 1  # nothing had to end first
    two_seats.drain()

    assert two_seats.status(tenant, other) == "done"
    assert two_seats.status(tenant, over_the_cap) == "created"
    assert used_slots(f"pair:{tenant.pk}:qa") == RUNS  # by design: accepted runs count against the caps
    two_seats.serve(tenant, "qa", adapter="http", endpoint=accepting_agent.url, max_concurrency=RUNS + 1)
    two_seats.submit(tenant, "seo")  # makes admission grant again
    two_seats.drain()
    assert len(accepting_agent.posted) == RUNS + 1


def test_accepted_runs_survive_their_worker_and_end_by_callbacks(
    two_seats: Engine, accepting_agent: HttpReceiver, tenant: Tenant
) -> None:
    two_seats.agent.behaviour = lambda request: Completed()
    started = two_seats.submit(tenant, "qa", count=RUNS)
    two_seats.drain()
    leases.end()
    two_seats.lease = leases.begin(roles=two_seats.roles, concurrency=SEATS, watched=False)

    jobs = [posted.json for posted in accepting_agent.posted]
    beats = [call_back(job, "heartbeat", {"progress": "on it"}) for job in jobs]
    ends = [call_back(job, "complete", {"output": {"content": "held"}}) for job in jobs]

    assert {(beat.status_code, beat.json()["stop"]) for beat in beats} == {(200, False)}
    assert {(end.status_code, end.json()["accepted"]) for end in ends} == {(200, True)}
    two_seats.drain()
    assert {two_seats.status(tenant, each) for each in started} == {"done"}
    assert used_slots(f"pair:{tenant.pk}:qa") == 0
    assert examine().violations == []
