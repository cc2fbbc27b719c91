"""The page of workers: every process with what it serves, how busy it is, and when it was last heard of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings

from activities import leases
from activities.models import ActivityRun, WorkerProcess
from tenants import clock
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.browsing import words
from tests.console_user import Person
from tests.engine import Engine
from tests.page_queries import MOST

WORKERS = "/workers/"


@pytest.fixture
def started(database: None) -> Iterator[Callable[..., WorkerProcess]]:
    """`started("host-a", ended_at=...)`: a worker process as it is written down."""
    made: list[WorkerProcess] = []

    def start(host: str, **fields: Any) -> WorkerProcess:
        given = {
            "boot": "b", "pid": 7, "pid_started": 1, "roles": ["qa"], "concurrency": 4, "version": "1.2.3", "active": 1,
            "load": {"cpu": 0.25, "memory": 0.5}, **fields,
        }  # fmt: skip
        with system_scope():
            made.append(WorkerProcess.objects.create(host=host, **given))
        return made[-1]

    yield start
    with system_scope():
        WorkerProcess.objects.filter(pk__in=[each.pk for each in made]).delete()


def states(page: Any) -> dict[str, str]:
    return {row.worker.host: row.state for row in page.context["workers"].rows}


def test_every_process_says_what_it_is_and_how_busy(
    started: Callable[..., WorkerProcess], ann: Person
) -> None:
    started("host-a", pid=4711, roles=["qa", "seo"], taken=12)

    text = words(ann.get(WORKERS))

    assert "host-a process 4711" in text
    assert "1.2.3" in text
    assert "qa, seo" in text
    assert "1 of 4" in text
    assert "processor 25%" in text
    assert "memory 50%" in text


def test_those_that_are_silent_lost_or_take_nothing_say_so_and_come_first(
    started: Callable[..., WorkerProcess], ann: Person
) -> None:
    now = clock.now()
    long_ago = now - timedelta(seconds=settings.ORCHESTRATOR_LOST_AFTER_SECONDS + 60)
    started("a-running")
    started("b-draining", closed={"*": leases.DRAINING})
    started("c-full", closed={"*": "memory"})
    started("d-silent", beat_at=long_ago)
    started("e-lost", ended_at=now, end_reason="lost")
    started("f-stopped", ended_at=now, end_reason="stopped")
    started("g-lost-long-ago", ended_at=now - timedelta(hours=2), end_reason="lost")
    started("h-half", closed={"qa": "its limit"})

    page = ann.get(WORKERS)

    assert list(states(page).items()) == [
        ("d-silent", "silent"),
        ("e-lost", "lost"),
        ("a-running", "running"),
        ("b-draining", "shutting down"),
        ("c-full", "intake closed"),
        ("h-half", "running"),
    ]
    assert "closed for qa : its limit" in words(page).replace("qa:", "qa :")


def test_runs_are_named_to_the_tenant_whose_they_are_alone(
    started: Callable[..., WorkerProcess],
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    person: Callable[..., Person],
) -> None:
    worker = started("host-a")
    (activity,) = engine.submit(tenant)
    with tenant_scope(tenant.pk):
        ActivityRun.objects.create(
            tenant=tenant, activity_id=activity, status="running", fence=1, attempt=1, wake_reason="new_task",
            grant="g", timeout_seconds=60, worker_id=worker.pk,
        )  # fmt: skip
    ann, otto = person("ann"), person("otto", other_tenant)

    assert f"/activities/{activity}/" in ann.get(WORKERS).content.decode()
    assert "1 for acme" in words(ann.get(WORKERS))
    assert str(activity) not in otto.get(WORKERS).content.decode()


def test_a_worker_writes_down_which_program_it_runs(database: None) -> None:
    lease = leases.Lease(roles=["qa"], concurrency=1, watched=False)
    lease.register()
    try:
        with system_scope():
            found = WorkerProcess.objects.get(pk=lease.worker_id).version
    finally:
        lease.end()

    assert found == leases.program_version() != ""


def test_without_workers_the_page_says_what_that_means(ann: Person) -> None:
    with system_scope():
        WorkerProcess.objects.filter(ended_at=None).update(ended_at=clock.now(), end_reason="stopped")

    assert "No worker is running." in words(ann.get(WORKERS))


def test_the_page_costs_the_same_however_many_there_are(
    started: Callable[..., WorkerProcess], ann: Person, asked_queries: Callable[..., list[str]]
) -> None:
    started("host-a")
    one = len(asked_queries(ann, WORKERS))
    for number in range(20):
        started(f"host-{number}")

    assert one == len(asked_queries(ann, WORKERS)) <= MOST - 1
