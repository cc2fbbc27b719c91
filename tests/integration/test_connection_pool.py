"""The threads of a worker share few connections to PostgreSQL without an effect on the rows that they see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from activities.maintenance.scheduler import Bounds
from agents import configuration, scheduler_settings
from tenants import connection_pool
from tenants.connection_pool import OPENED_AT_ONCE, ConnectionPool
from tenants.context import APP, POOL, tenant_scope
from tenants.models import Tenant
from tests.engine import in_another_thread, simultaneously

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectionPool]:
    monkeypatch.setattr(connection_pool, "PATIENCE_SECONDS", 20.0)
    POOL.begin()
    yield POOL
    POOL.end()


def query(question: str) -> Any:
    with connections[APP].cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()[0]


def backend() -> Any:
    return query("SELECT pg_backend_pid()")


def work_for(tenant: Tenant, action: Callable[[], Any] = backend) -> Any:
    with tenant_scope(tenant.pk):
        return action()


def holds_one() -> bool:
    return hasattr(connections._connections, APP)  # type: ignore[attr-defined]


def test_threads_share_one_connection_and_hold_none_in_between(tenant: Tenant) -> None:
    def twice() -> tuple[Any, bool, Any]:
        first = work_for(tenant)
        return first, holds_one(), work_for(tenant)

    results = [in_another_thread(twice) for _ in range(3)]

    assert len({pid for first, _, second in results for pid in (first, second)}) == 1
    assert not any(holds for _, holds, _ in results)


def test_a_returned_connection_does_not_keep_its_tenant(tenant: Tenant) -> None:
    def outside_of_a_scope() -> tuple[Any, Any]:
        with POOL.connection():
            return backend(), query("SELECT current_setting('app.tenant_id', true)")

    used = in_another_thread(lambda: work_for(tenant))

    assert in_another_thread(outside_of_a_scope) == (used, "")


def test_code_in_a_scope_and_after_its_commit_uses_the_connection_of_the_scope(tenant: Tenant) -> None:
    def nested() -> list[Any]:
        backends: list[Any] = []
        with tenant_scope(tenant.pk):
            backends.append(backend())
            transaction.on_commit(lambda: backends.append(work_for(tenant)), using=APP)
            backends.append(work_for(tenant))
        return backends

    both_work = Barrier(2)

    def meet() -> Any:
        both_work.wait()
        return backend()

    assert len(set(in_another_thread(nested))) == 1
    # No other thread gets it meanwhile.
    assert len(set(simultaneously(*[lambda: work_for(tenant, meet)] * 2))) == 2


def test_an_open_transaction_keeps_its_connection(tenant: Tenant) -> None:
    def inside_of_a_transaction() -> bool:
        with transaction.atomic(using=APP):
            return bool(backend() == work_for(tenant) == backend())

    assert in_another_thread(inside_of_a_transaction)


def test_a_connection_that_a_thread_has_opened_joins_an_empty_pool(tenant: Tenant) -> None:
    POOL.end()
    POOL.begin()

    def alone_first() -> tuple[Any, Any, bool]:
        return backend(), work_for(tenant), holds_one()

    own, used, still_holds = in_another_thread(alone_first)

    assert own == used == in_another_thread(lambda: work_for(tenant))
    assert not still_holds


def test_a_thread_that_opens_a_connection_between_two_uses_of_the_pool_does_not_enlarge_it(
    tenant: Tenant,
) -> None:
    def in_turns() -> tuple[set[Any], list[Any]]:
        used, opened = set(), []
        for _ in range(3):
            used.add(work_for(tenant))
            backend()
            opened.append(connections[APP])
        used.add(work_for(tenant))
        return used, opened

    used, opened = in_another_thread(in_turns)

    assert len(used) == 1
    assert all(each.connection is None for each in opened)


@pytest.mark.parametrize("read", [scheduler_settings.current, configuration.list_roles])
def test_settings_of_the_platform_are_read_with_a_connection_of_the_pool(
    read: Callable[[], Any], tenant: Tenant
) -> None:
    def settings_first() -> tuple[bool, Any]:
        configuration.forget()
        scheduler_settings.forget()
        read()
        return holds_one(), work_for(tenant)

    used = in_another_thread(lambda: work_for(tenant))

    assert in_another_thread(settings_first) == (False, used)


def test_limits_that_upkeep_sets_on_its_connection_stay_in_force(tenant: Tenant) -> None:
    def limit() -> Any:
        return query("SELECT current_setting('statement_timeout')")

    def upkeep() -> list[Any]:
        Bounds().apply(1.25)
        return [work_for(tenant, limit), work_for(tenant, limit), holds_one()]

    usual = in_another_thread(lambda: work_for(tenant, limit))

    assert in_another_thread(upkeep) == ["1250ms", "1250ms", True]
    assert in_another_thread(lambda: work_for(tenant, limit)) == usual != "1250ms"


def test_a_thread_waits_for_a_returned_connection_before_it_opens_another(tenant: Tenant) -> None:
    all_hold, release = Barrier(OPENED_AT_ONCE + 1), Event()

    def hold() -> Any:
        def until_release() -> Any:
            all_hold.wait()
            release.wait()
            return backend()

        return work_for(tenant, until_release)

    with ThreadPoolExecutor(OPENED_AT_ONCE + 1) as threads:
        held = [threads.submit(hold) for _ in range(OPENED_AT_ONCE)]
        all_hold.wait()
        late = threads.submit(work_for, tenant)
        assert not late.done()
        release.set()
        assert late.result() in [each.result() for each in held]


def test_no_thread_waits_long_for_a_connection(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "PATIENCE_SECONDS", 0.01)
    all_work = Barrier(OPENED_AT_ONCE + 2)

    def meet() -> Any:
        all_work.wait(20)  # no connection has been returned when the last thread arrives
        return backend()

    backends = simultaneously(*[lambda: work_for(tenant, meet)] * (OPENED_AT_ONCE + 2))

    assert len(set(backends)) == OPENED_AT_ONCE + 2


def test_a_connection_that_was_lost_is_replaced(tenant: Tenant) -> None:
    def lose() -> None:
        connections[APP].connection.pgconn.finish()  # as if the network had gone
        backend()

    before = in_another_thread(lambda: work_for(tenant))
    with pytest.raises(OperationalError):
        in_another_thread(lambda: work_for(tenant, lose))

    assert in_another_thread(lambda: work_for(tenant)) != before


def test_a_connection_that_comes_back_after_the_end_is_closed(tenant: Tenant) -> None:
    def end_meanwhile() -> Any:
        with tenant_scope(tenant.pk):
            backend()
            lent = connections[APP]
            POOL.end()
        return lent.connection

    assert in_another_thread(end_meanwhile) is None


def test_a_connection_whose_statement_failed_is_used_again(tenant: Tenant) -> None:
    before = in_another_thread(lambda: work_for(tenant))
    with pytest.raises(Exception, match="division by zero"):
        in_another_thread(lambda: work_for(tenant, lambda: query("SELECT 1 / 0")))

    assert in_another_thread(lambda: work_for(tenant)) == before
