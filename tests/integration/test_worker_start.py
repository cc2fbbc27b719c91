"""A process starts completely or not at all, although Celery itself continues when a step of the start fails."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from django.db import OperationalError
from django_celery_beat.schedulers import DatabaseScheduler

from activities import leases, worker
from activities.models import WorkerProcess
from agents.command_line import users
from orchestrator import celery
from orchestrator.beat import PatientScheduler
from tenants import outages
from tenants.context import system_scope
from tenants.exceptions import RowSecurityMissing


@pytest.fixture(autouse=True)
def no_lease(database: None) -> Iterator[None]:
    leases.end()
    yield
    leases.end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery, "START_PAUSE_SECONDS", 0.01)


def begin() -> None:
    worker.begin(roles=["qa"], concurrency=2)


def registered_workers() -> int:
    with system_scope():
        return WorkerProcess.objects.filter(ended_at=None).count()


def test_a_worker_that_starts_during_an_outage_of_postgresql_is_registered_afterwards(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    register, failures = leases.Lease.register, iter(range(2))

    def is_away_at_first(lease: leases.Lease) -> None:
        if next(failures, None) is not None:
            raise OperationalError("the database system is starting up")
        register(lease)

    monkeypatch.setattr(leases.Lease, "register", is_away_at_first)

    celery.ensure(begin)

    assert registered_workers() == 1
    with system_scope():
        assert WorkerProcess.objects.get(ended_at=None).pk == leases.current().worker_id


def test_a_worker_that_cannot_be_registered_exits_instead_of_taking_messages(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(lease: leases.Lease) -> None:
        raise OperationalError("the database system is shutting down")

    monkeypatch.setattr(celery, "START_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(leases.Lease, "register", is_away)

    with pytest.raises(SystemExit) as ended:
        celery.ensure(begin)

    assert ended.value.code == celery.NOT_STARTED
    assert leases.is_over()


def test_a_worker_does_not_start_without_row_level_security(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unsafe(tables: list[str]) -> None:
        raise RowSecurityMissing("table notes has no forced row-level security")

    monkeypatch.setattr(worker.row_security, "refuse_unsafe_database", unsafe)

    with pytest.raises(SystemExit):
        celery.ensure(begin)

    assert registered_workers() == 0


def test_beat_waits_for_postgresql_when_it_reads_its_schedule_for_the_first_time(
    impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reads, failures = [], iter(range(2))

    def is_away_at_first(scheduler: DatabaseScheduler) -> None:
        if next(failures, None) is not None:
            raise OperationalError("the database system is starting up")
        reads.append(scheduler)

    monkeypatch.setattr(DatabaseScheduler, "setup_schedule", is_away_at_first)

    scheduler = PatientScheduler(celery.app)

    assert reads == [scheduler]
    assert [getattr(record, "reason", "") for record in caplog.records] == [
        outages.reason_of(OperationalError())
    ] * 2


def test_beat_starts_although_what_it_repairs_at_its_start_fails() -> None:
    def broken() -> None:
        raise ValueError("a row that cannot be read")

    celery.ensure(broken, vital=False)


class Queues:
    """Stands in for Celery's queues of a worker."""

    def __init__(self, *names: str) -> None:
        self.consume_from = dict.fromkeys(names)

    def deselect(self, names: list[str]) -> None:
        for name in names:
            del self.consume_from[name]

    def select_add(self, name: str) -> None:
        self.consume_from[name] = None


@pytest.mark.parametrize(
    ("queue", "roles", "queues"),
    [
        ("agent__seo", [], []),
        ("agent__soe", ["soe"], []),
        ("agent__s[ei]o*", [], []),
        ("agent__soe*", ["soe*"], []),
        ("seo", [], ["seo"]),
        ("digest", [], []),
    ],
)
def test_a_worker_logs_which_of_its_roles_and_queues_do_not_exist(
    queue: str,
    roles: list[str],
    queues: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(celery, "_named_queues", [queue])
    monkeypatch.setattr(celery, "_roles", [])
    monkeypatch.setattr(users, "begin_worker", lambda: None)
    instance = SimpleNamespace(app=SimpleNamespace(amqp=SimpleNamespace(queues=Queues(queue))))

    celery.choose_queues("worker", instance)

    def logged(action: str, member: str) -> list[str]:
        records = [record for record in caplog.records if getattr(record, "action", "") == action]
        return [name for record in records for name in getattr(record, member)]

    assert logged("role_unknown", "roles") == roles
    assert logged("queue_unknown", "queues") == queues
