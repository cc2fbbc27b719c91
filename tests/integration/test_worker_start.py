"""A process starts as a whole or not at all: Celery itself goes on when a step of the start has failed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from activities import leases, worker
from activities.models import WorkerProcess
from agents.command_line import users
from orchestrator import celery
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


def known() -> int:
    with system_scope():
        return WorkerProcess.objects.filter(ended_at=None).count()


def test_a_worker_that_starts_while_postgresql_is_away_is_known_once_it_is_back(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    register, failures = leases.Lease.register, iter(range(2))

    def away_at_first(lease: leases.Lease) -> None:
        if next(failures, None) is not None:
            raise OperationalError("the database system is starting up")
        register(lease)

    monkeypatch.setattr(leases.Lease, "register", away_at_first)

    celery._ensure(begin)

    assert known() == 1
    with system_scope():
        assert WorkerProcess.objects.get(ended_at=None).pk == leases.current().worker_id


def test_a_worker_that_cannot_become_known_ends_instead_of_taking_messages(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(lease: leases.Lease) -> None:
        raise OperationalError("the database system is shutting down")

    monkeypatch.setattr(celery, "START_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(leases.Lease, "register", away)

    with pytest.raises(SystemExit) as ended:
        celery._ensure(begin)

    assert ended.value.code == celery.NOT_STARTED
    assert leases.is_over()


def test_a_worker_does_not_start_on_a_database_that_does_not_keep_tenants_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unsafe(tables: list[str]) -> None:
        raise RowSecurityMissing("table notes has no forced row-level security")

    monkeypatch.setattr(worker.row_security, "refuse_unsafe_database", unsafe)

    with pytest.raises(SystemExit):
        celery._ensure(begin)

    assert known() == 0


def test_beat_starts_though_something_that_it_mends_is_broken() -> None:
    def broken() -> None:
        raise ValueError("a row that cannot be read")

    celery._ensure(broken, vital=False)


class Queues:
    """Those of Celery that a worker consumes from."""

    def __init__(self, *names: str) -> None:
        self.consume_from = dict.fromkeys(names)

    def deselect(self, names: list[str]) -> None:
        for name in names:
            del self.consume_from[name]

    def select_add(self, name: str) -> None:
        self.consume_from[name] = None


@pytest.mark.parametrize(("named", "unknown"), [("agent__seo", []), ("agent__soe", ["soe"])])
def test_a_worker_says_which_of_its_roles_the_registry_does_not_have(
    named: str, unknown: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(celery, "_named_queues", [named])
    monkeypatch.setattr(celery, "_roles", [])
    monkeypatch.setattr(users, "begin_worker", lambda: None)
    instance = SimpleNamespace(app=SimpleNamespace(amqp=SimpleNamespace(queues=Queues(named))))

    celery.choose_queues("worker", instance)

    told = [record for record in caplog.records if getattr(record, "action", "") == "role_unknown"]
    assert [record.roles for record in told] == [unknown] * bool(unknown)  # type: ignore[attr-defined]
