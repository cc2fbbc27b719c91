"""The page of workers: every process with its roles, its load and its last heartbeat."""

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
from tests import pages
from tests.browsing import visible_text
from tests.console_user import Person
from tests.engine import Engine
from tests.page_queries import MOST

WORKERS = "/workers/"


@pytest.fixture
def start_worker(database: None) -> Iterator[Callable[..., WorkerProcess]]:
    """`start_worker("host-a", ended_at=...)` records a worker process."""
    workers: list[WorkerProcess] = []

    def start(host: str, **fields: Any) -> WorkerProcess:
        values = {
            "boot": "b", "pid": 7, "pid_started": 1, "roles": ["qa"], "concurrency": 4, "version": "1.2.3", "active": 1,
            "load": {"cpu": 0.25, "memory": 0.5}, **fields,
        }  # fmt: skip
        with system_scope():
            workers.append(WorkerProcess.objects.create(host=host, **values))
        return workers[-1]

    yield start
    with system_scope():
        WorkerProcess.objects.filter(pk__in=[each.pk for each in workers]).delete()


def states(page: Any) -> dict[str, str]:
    return {row.worker.host: row.state for row in page.context["rows"]}


def test_every_process_shows_its_identity_and_load(
    start_worker: Callable[..., WorkerProcess], ann: Person
) -> None:
    start_worker("host-a", pid=4711, roles=["qa", "seo"], taken=12)

    text = visible_text(ann.get(WORKERS))

    assert "host-a process 4711" in text
    assert "1.2.3" in text
    assert "qa, seo" in text
    assert "1 of 4" in text
    assert "processor 25%" in text
    assert "memory 50%" in text


@pytest.mark.ui
def test_a_process_with_many_roles_fits_the_page(
    start_worker: Callable[..., WorkerProcess], ann: Person
) -> None:
    start_worker("a-host-with-a-long-name", roles=[f"some-content-writer-{number}" for number in range(32)])

    with pages.page_of(ann.user, width=1280) as page:
        page.goto(WORKERS)
        figures = page.locator("main .figures").bounding_box()
        table = page.locator("main table").bounding_box()
        outside = page.locator("tbody :is(th, td)").evaluate_all(
            "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.dataset.label)"
        )
        roles = page.locator("td[data-label=Roles]").first.bounding_box()

    assert table["width"] <= figures["width"]
    assert outside == []
    assert roles["width"] >= 150


def test_silent_lost_and_closed_workers_say_so_and_come_first(
    start_worker: Callable[..., WorkerProcess], ann: Person
) -> None:
    now = clock.now()
    long_ago = now - timedelta(seconds=settings.ORCHESTRATOR_LOST_AFTER_SECONDS + 60)
    start_worker("a-running")
    start_worker("b-draining", closed={"*": leases.DRAINING})
    start_worker("c-full", closed={"*": "memory"})
    start_worker("d-silent", beat_at=long_ago)
    start_worker("e-lost", ended_at=now, end_reason="lost")
    start_worker("f-stopped", ended_at=now, end_reason="stopped")
    start_worker("g-lost-long-ago", ended_at=now - timedelta(hours=2), end_reason="lost")

    page = ann.get(WORKERS)

    assert list(states(page).items()) == [
        ("d-silent", "silent"),
        ("e-lost", "lost"),
        ("a-running", "running"),
        ("b-draining", "shutting down"),
        ("c-full", "intake closed"),
    ]
    assert "intake closed memory" in visible_text(page)


def test_runs_are_shown_only_to_their_tenant(
    start_worker: Callable[..., WorkerProcess],
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    person: Callable[..., Person],
) -> None:
    worker = start_worker("host-a")
    (activity,) = engine.submit(tenant)
    with tenant_scope(tenant.pk):
        ActivityRun.objects.create(
            tenant=tenant, activity_id=activity, status="running", fence=1, attempt=1, wake_reason="new_task",
            grant="g", timeout_seconds=60, worker_id=worker.pk,
        )  # fmt: skip
    ann, otto = person("ann"), person("otto", other_tenant)

    assert f"/activities/{activity}/" in ann.get(WORKERS).content.decode()
    assert "1 for acme" in visible_text(ann.get(WORKERS))
    assert str(activity) not in otto.get(WORKERS).content.decode()


def test_a_worker_records_its_program_version(database: None) -> None:
    lease = leases.Lease(roles=["qa"], concurrency=1, watched=False)
    lease.register()
    try:
        with system_scope():
            version = WorkerProcess.objects.get(pk=lease.worker_id).version
    finally:
        lease.end()

    assert version == leases.program_version() != ""


def test_a_page_without_workers_says_so(ann: Person) -> None:
    with system_scope():
        WorkerProcess.objects.filter(ended_at=None).update(ended_at=clock.now(), end_reason="stopped")

    assert "No worker is running." in visible_text(ann.get(WORKERS))


def test_the_page_needs_the_same_queries_for_any_number_of_workers(
    start_worker: Callable[..., WorkerProcess], ann: Person, queries_of: Callable[..., list[str]]
) -> None:
    start_worker("host-a")
    one = len(queries_of(ann, WORKERS))
    for number in range(20):
        start_worker(f"host-{number}")

    assert one == len(queries_of(ann, WORKERS)) <= MOST - 1
