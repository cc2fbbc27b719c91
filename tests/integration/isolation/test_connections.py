"""Connections serve one tenant after another. None remembers the last tenant, whatever went wrong."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from itertools import cycle
from threading import Barrier, Lock
from typing import Any

import pytest
from django.db import IntegrityError, NotSupportedError, OperationalError, connections, transaction
from django.urls import include, path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient

from activities.models import Activity
from activities.submission import NewActivity, submit
from tenants import outages
from tenants.api.views import TenantView
from tenants.context import APP, OWNER, set_tenant, tenant_scope
from tenants.models import Tenant
from tenants.postgresql.base import BoundedConnection
from tenants.sql import Rows, Statement

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("database"),
    pytest.mark.urls("tests.integration.isolation.test_connections"),
]

REQUESTS, FEWER_REQUESTS, CONNECTIONS = 400, 60, 2
LOST = 25  # at most so many connections are lost
EVERY = 15  # one of so many requests breaks
FAILING = "/failing/"
NAMES_SEEN = "SELECT coalesce(string_agg(DISTINCT name, ','), '') FROM activities_activity"


class Failing(TenantView):
    """Reads, writes and then fails in the requested way."""

    queryset = Activity.objects

    def post(self, request: Request, way: str) -> Response:
        with tenant_scope(self.tenant_id):
            submit([NewActivity(name="never", agent_role="qa")], actor="test")
        with connections[APP].cursor() as cursor:
            if way == "database":
                cursor.execute("SELECT 1 / 0")
        if way == "lost":
            connections[APP].connection.pgconn.finish()  # as if the network were lost
        raise ZeroDivisionError


urlpatterns = [
    path("", include("orchestrator.urls")),
    path("failing/<str:way>/", Failing.as_view()),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Switch logging off, because logging tracebacks takes longer than everything else here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def both(api: Any, tenant: Tenant, other_tenant: Tenant) -> dict[str, APIClient]:
    """A client for each of two tenants, whose activities have the name of the tenant."""
    clients = {}
    for owner in (tenant, other_tenant):
        with tenant_scope(owner.pk):
            submit([NewActivity(name=owner.slug, agent_role="qa") for _ in range(3)], actor="test")
        clients[owner.slug] = api("admin", owner)
        clients[owner.slug].raise_request_exception = False
    return clients


def names_without_a_tenant() -> str:
    with connections[APP].cursor() as cursor:
        cursor.execute(NAMES_SEEN)
        return str(cursor.fetchone()[0])


def ask(client: APIClient, kind: str) -> tuple[int, set[str]]:
    """Return the status and the names of the returned activities."""
    if kind in {"exception", "database", "lost"}:
        return client.post(f"{FAILING}{kind}/", {}).status_code, set()
    if kind == "refused":
        return client.post("/api/v1/activities/", {"name": ""}).status_code, set()
    answer = client.get("/api/v1/activities/", {"limit": 50} if kind == "list" else {"search": "e"})
    return answer.status_code, {each["name"] for each in answer.json()["results"]}


EXPECTED = {"list": 200, "search": 200, "refused": 400, "exception": 500, "database": 400, "lost": 500}


def mixed_requests(clients: dict[str, APIClient], processes: set[int]) -> Callable[[int], list[str]]:
    """Return a function that sends a request of either tenant and returns what was wrong with its response or its connection."""
    chance, lock = random.Random(20), Lock()
    breaking = cycle(["exception", "database", "lost"])
    kinds = [
        next(breaking) if number % EVERY == 0 else chance.choice(["list", "list", "search", "refused"])
        for number in range(REQUESTS)
    ]
    plan = [(chance.choice(sorted(clients)), kind) for kind in kinds]

    def one(number: int) -> list[str]:
        slug, kind = plan[number]
        client = APIClient(raise_request_exception=False)
        client.credentials(**clients[slug]._credentials)
        status, names = ask(client, kind)
        remaining = names_without_a_tenant()
        with lock, connections[APP].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            processes.add(cursor.fetchone()[0])
        wrong = [f"{kind}: {status}"] if status != EXPECTED[kind] else []
        wrong += [f"{slug} received {names}"] if names - {slug} else []
        wrong += [f"after {slug} the connection shows {remaining}"] if remaining else []
        return wrong + ([f"{slug} received nothing"] if kind == "list" and names != {slug} else [])

    return one


def test_mixed_requests_on_two_persistent_connections_leak_nothing(both: dict[str, APIClient]) -> None:
    processes: set[int] = set()
    both_threads = Barrier(CONNECTIONS)

    def end(_: int) -> None:
        # Otherwise one thread could run both calls, and the connection of the other would stay.
        both_threads.wait(30)
        connections.close_all()

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        wrong = [
            fault
            for faults in threads.map(mixed_requests(both, processes), range(FEWER_REQUESTS))
            for fault in faults
        ]
        list(threads.map(end, range(CONNECTIONS)))

    assert wrong == []
    assert len(processes) <= CONNECTIONS + LOST  # because each lost connection was replaced


@contextmanager
def pooled() -> Iterator[None]:
    """Use Django's own pool, from which threads take one of two connections for each request."""
    connections[APP].close()
    original = connections.settings[APP]
    changed = deepcopy(original)
    changed["CONN_MAX_AGE"] = 0
    changed["OPTIONS"]["pool"] = {"min_size": CONNECTIONS, "max_size": CONNECTIONS, "timeout": 30}
    connections.settings[APP] = changed
    del connections[APP]
    try:
        yield
    finally:
        connections[APP].close()
        # A pool that closes would abandon the replacement of a lost connection.
        connections[APP].pool.wait(30)
        connections[APP].close_pool()
        connections.settings[APP] = original
        del connections[APP]


def test_mixed_requests_of_four_threads_on_a_pool_of_two_leak_nothing(
    both: dict[str, APIClient],
) -> None:
    pytest.importorskip("psycopg_pool")
    processes: set[int] = set()

    def one(number: int) -> list[str]:
        try:
            return request(number)
        finally:
            connections.close_all()  # as the end of a request does

    with pooled(), ThreadPoolExecutor(4) as threads:
        request = mixed_requests(both, processes)
        wrong = [fault for faults in threads.map(one, range(REQUESTS)) for fault in faults]

    assert wrong == []
    assert len(processes) <= CONNECTIONS + LOST


@pytest.mark.parametrize("way", ["exception", "database", "lost"])
def test_the_request_after_a_failed_one_sees_nothing_of_its_tenant(
    both: dict[str, APIClient], way: str
) -> None:
    before = ask(both["acme"], "list")

    assert ask(both["acme"], way) == (EXPECTED[way], set())

    assert names_without_a_tenant() == ""
    assert ask(both["globex"], "list") == (200, {"globex"})
    assert ask(both["acme"], "list") == before


def test_a_connection_returned_in_a_transaction_forgets_its_tenant(tenant: Tenant, both: Any) -> None:
    """This is the state after a thread that died in a transaction."""
    set_tenant(tenant.pk)
    assert names_without_a_tenant() == "acme"

    connections[APP].connection.rollback()

    assert names_without_a_tenant() == ""
    assert ask(both["globex"], "list") == (200, {"globex"})


CURRENT_TENANT = "SELECT coalesce(current_setting('app.tenant_id', true), '') AS tenant"


def _by_a_cursor() -> str:
    with connections[APP].cursor() as cursor:
        cursor.execute(CURRENT_TENANT)
        return str(cursor.fetchone()[0])


def _by_hand() -> str:
    return str(Statement("current_tenant", CURRENT_TENANT).run({}, using=APP)[0].tenant)


def _in_a_savepoint() -> str:
    with transaction.atomic(using=APP):
        return _by_a_cursor()


@pytest.mark.parametrize(
    "look", [_by_a_cursor, _by_hand, _in_a_savepoint], ids=["cursor", "by_hand", "savepoint"]
)
def test_the_first_statement_of_a_transaction_sees_its_tenant(
    tenant: Tenant, look: Callable[[], str]
) -> None:
    with tenant_scope(tenant.pk):
        assert (look(), look()) == (str(tenant.pk), str(tenant.pk))
    with transaction.atomic(using=APP):
        assert look() == ""


def _leave(tenant: Tenant, way: str) -> None:
    with suppress(ZeroDivisionError), tenant_scope(tenant.pk):
        if way == "error":
            raise ZeroDivisionError


@pytest.mark.parametrize("way", ["end", "error"])
@pytest.mark.parametrize("look", [_by_a_cursor, _by_hand], ids=["cursor", "by_hand"])
def test_an_unused_tenant_is_forgotten_with_the_transaction(
    tenant: Tenant, look: Callable[[], str], way: str
) -> None:
    _leave(tenant, way)
    with transaction.atomic(using=APP):
        assert look() == ""
    assert look() == ""


@pytest.mark.parametrize(
    "leave",
    [BoundedConnection.commit, BoundedConnection.rollback, lambda raw: raw.set_autocommit(False)],
    ids=["commit", "rollback", "taken_from_a_pool"],
)
def test_an_unused_tenant_is_forgotten_in_each_way_of_leaving_a_transaction(
    tenant: Tenant, leave: Callable[[BoundedConnection], None]
) -> None:
    connections[APP].ensure_connection()
    raw = connections[APP].connection
    raw.set_autocommit(False)
    try:
        assert raw.begins_with(f"SET LOCAL app.tenant_id = '{tenant.pk}'".encode())
        leave(raw)
        assert raw.execute(CURRENT_TENANT).fetchone() == ("",)
    finally:
        raw.rollback()
        raw.set_autocommit(True)


def test_a_connection_lost_before_the_first_statement_is_an_operational_error(
    tenant: Tenant,
) -> None:
    for look in (_by_a_cursor, _by_hand):
        connections[APP].close()
        pid = _backend()
        with connections[OWNER].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(OperationalError) as error, tenant_scope(tenant.pk):
            look()
        assert outages.is_away(error.value)
        with tenant_scope(tenant.pk):
            assert look() == str(tenant.pk)


def _backend() -> int:
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


ADD = Statement("add", "INSERT INTO numbers (number) VALUES (%(number)s) RETURNING number")


@pytest.fixture
def numbers() -> Iterator[Callable[[], list[int]]]:
    """Create a table of unique numbers, and return a function that reads the committed ones in order."""
    with connections[OWNER].cursor() as cursor:
        cursor.execute("CREATE TABLE numbers (place int GENERATED ALWAYS AS IDENTITY, number int UNIQUE)")
        cursor.execute("GRANT ALL ON numbers TO PUBLIC")

    def read() -> list[int]:
        with connections[OWNER].cursor() as cursor:
            cursor.execute("SELECT number FROM numbers ORDER BY place")
            return [number for (number,) in cursor.fetchall()]

    yield read
    with connections[OWNER].cursor() as cursor:
        cursor.execute("DROP TABLE numbers")


def _add(number: int) -> Rows:
    return ADD.run_with_next({"number": number}, using=APP)


def test_a_statement_sent_with_the_commit_takes_no_extra_round_trip(
    tenant: Tenant, numbers: Callable[[], list[int]]
) -> None:
    with tenant_scope(tenant.pk):
        _add(1)  # to have the statement prepared
    pgconn = connections[APP].connection.pgconn
    with tempfile.TemporaryFile() as trace_file:
        pgconn.trace(trace_file.fileno())
        try:
            with tenant_scope(tenant.pk):
                two, three = _add(2), _add(3)
        finally:
            pgconn.untrace()
        trace_file.seek(0)
        round_trips = trace_file.read().count(b"ReadyForQuery")

    assert round_trips == 1
    assert numbers() == [1, 2, 3]
    assert [two.fetch(), three.fetch()] == [[(2,)], [(3,)]]


@pytest.mark.parametrize(
    "look", [_by_a_cursor, _by_hand, _in_a_savepoint], ids=["cursor", "by_hand", "savepoint"]
)
def test_a_deferred_statement_runs_before_the_next_one(
    tenant: Tenant, numbers: Callable[[], list[int]], look: Callable[[], str]
) -> None:
    with tenant_scope(tenant.pk):
        _add(1)
        assert look() == str(tenant.pk)
        ADD.run({"number": 2}, using=APP)
        _add(3)
        ADD.run({"number": 4}, using=APP)

    assert numbers() == [1, 2, 3, 4]


def test_fetching_rows_of_a_deferred_statement_sends_it(
    tenant: Tenant, numbers: Callable[[], list[int]]
) -> None:
    with suppress(ZeroDivisionError), tenant_scope(tenant.pk):
        assert _add(1).fetch() == [(1,)]
        raise ZeroDivisionError

    assert numbers() == []
    assert _add(2).fetch() == [(2,)]  # because there is no transaction to wait for
    assert numbers() == [2]


def test_a_rolled_back_transaction_drops_its_deferred_statements(
    tenant: Tenant, numbers: Callable[[], list[int]]
) -> None:
    with suppress(ZeroDivisionError), tenant_scope(tenant.pk):
        lost = _add(1)
        raise ZeroDivisionError
    with tenant_scope(tenant.pk):
        ADD.run({"number": 2}, using=APP)

    assert numbers() == [2]
    with pytest.raises(LookupError):
        lost.fetch()


@pytest.mark.parametrize("is_prepared", [True, False], ids=["prepared", "new"])
def test_an_error_of_a_deferred_statement_rolls_back_and_keeps_the_connection(
    tenant: Tenant, numbers: Callable[[], list[int]], is_prepared: bool
) -> None:
    if not is_prepared:
        connections[APP].close()
    with tenant_scope(tenant.pk):
        _add(1)
    results: list[Rows] = []

    def add_one_twice() -> None:
        with tenant_scope(tenant.pk):
            _add(2)
            results.extend([_add(1), _add(3)])

    with pytest.raises(IntegrityError):
        add_one_twice()
    with tenant_scope(tenant.pk):
        assert _by_hand() == str(tenant.pk)
        _add(4)

    assert numbers() == [1, 4]
    for rows in results:
        with pytest.raises(LookupError):
            rows.fetch()


def test_a_connection_lost_before_the_commit_is_an_operational_error(
    tenant: Tenant, numbers: Callable[[], list[int]]
) -> None:
    pid = _backend()

    def add_to_a_lost_connection() -> None:
        with tenant_scope(tenant.pk):
            _add(1)
            with connections[OWNER].cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    with pytest.raises(OperationalError) as error:
        add_to_a_lost_connection()
    with tenant_scope(tenant.pk):
        _add(2)

    assert outages.is_away(error.value)
    assert numbers() == [2]


def test_a_changed_table_breaks_a_prepared_deferred_statement_only_once(
    tenant: Tenant, numbers: Callable[[], list[int]]
) -> None:
    every = Statement("every", "SELECT * FROM numbers")
    with tenant_scope(tenant.pk):
        every.run_with_next({}, using=APP)
    with connections[OWNER].cursor() as cursor:
        cursor.execute("ALTER TABLE numbers ADD more int")
    with pytest.raises(NotSupportedError), tenant_scope(tenant.pk):
        every.run_with_next({}, using=APP)
    with tenant_scope(tenant.pk):
        found = every.run_with_next({}, using=APP)

    assert found.fetch() == []
