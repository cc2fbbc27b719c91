"""A PostgreSQL that neither answers nor closes its connections blocks nobody for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from tenants.context import APP, OWNER, long_statements, tenant_scope
from tenants.models import Tenant
from tenants.postgresql import base
from tenants.sql import Statement
from tests import servers
from tests.engine import eventually, in_another_thread, no_threads
from tests.network import Proxy, proxy_to

NOTICE, PATIENCE, GRACE = 0.2, 1, 0.1
MARGIN = 10.0  # for a busy machine
LONG = 30  # seconds, more than the margin


@pytest.fixture
def proxy(database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy to PostgreSQL for the alias of requests and workers."""
    monkeypatch.setattr(base, "NOTICE_SECONDS", NOTICE)
    monkeypatch.setattr(base, "PATIENCE_SECONDS", PATIENCE)
    monkeypatch.setattr(base, "GRACE_SECONDS", GRACE)
    monkeypatch.setattr(base, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(base, "_servers", {})  # an earlier test may have used this port for a silent server
    settings = connections.settings[APP]
    connections[APP].close()
    with proxy_to(*servers.postgres_address()) as proxy:
        monkeypatch.setitem(settings, "HOST", "127.0.0.1")
        monkeypatch.setitem(settings, "PORT", str(proxy.port))
        yield proxy
        connections[APP].close()


def _ask(question: str = "SELECT 1") -> Any:
    with connections[APP].cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()[0]


def _silence_of(proxy: Proxy) -> base.Silence:
    return base.of(connections[APP].get_connection_params())


def _seconds(action: Any) -> float:
    began = time.monotonic()
    with pytest.raises(OperationalError):
        action()
    return time.monotonic() - began


def test_a_statement_to_a_silent_server_fails_within_seconds(proxy: Proxy) -> None:
    assert _ask() == 1

    proxy.stall()

    assert _seconds(_ask) < NOTICE + PATIENCE + MARGIN
    assert connections[APP].connection.closed


def test_once_a_server_is_known_to_be_silent_statements_fail_without_waiting(
    proxy: Proxy, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_scope() -> None:
        with tenant_scope(tenant.pk):
            Statement("one", "SELECT 1 AS one").run({})

    _ask()
    proxy.stall()
    _silence_of(proxy).suspect()
    eventually(lambda: _silence_of(proxy).is_known)
    monkeypatch.setattr(base, "PATIENCE_SECONDS", LONG)

    assert _seconds(in_scope) < GRACE + MARGIN, "an open connection"
    monkeypatch.setitem(connections.settings[APP]["OPTIONS"], "connect_timeout", LONG)
    assert in_another_thread(lambda: _seconds(_ask)) < GRACE + MARGIN, "a new connection"


def test_statements_work_again_as_soon_as_the_server_answers(proxy: Proxy) -> None:
    _ask()
    proxy.stall()
    _seconds(_ask)

    proxy.resume()

    eventually(lambda: not _silence_of(proxy).is_known)
    connections[APP].close()
    assert _ask() == 1


def test_a_slow_statement_is_not_ended_while_the_server_answers_others(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PATIENCE_SECONDS", LONG)
    assert _ask(f"SELECT 1 FROM pg_sleep({NOTICE * 6})") == 1
    assert not _silence_of(proxy).is_known


def test_a_single_silent_connection_is_closed_although_the_server_answers(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PATIENCE_SECONDS", LONG)
    monkeypatch.setitem(connections.settings[APP]["OPTIONS"], "answer_within_seconds", 1.0)
    connections[APP].close()

    assert 1.0 < _seconds(lambda: _ask("SELECT 1 FROM pg_sleep(20)")) < 1.0 + MARGIN
    assert not _silence_of(proxy).is_known


def test_statements_of_a_command_about_very_many_rows_may_take_longer(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections[APP].ensure_connection()
    monkeypatch.setattr(connections[APP].connection, "answer_within_seconds", 0.3)
    slow = "SELECT 1 FROM pg_sleep(0.6)"

    with transaction.atomic(using=APP), long_statements(APP):
        assert _ask(slow) == 1
        assert _ask("SHOW statement_timeout") == "0"
    with (
        pytest.raises(OperationalError, match="statement timeout"),
        transaction.atomic(using=APP),
        long_statements(APP, seconds=1),
    ):
        _ask("SELECT 1 FROM pg_sleep(20)")
    with pytest.raises(OperationalError, match="given up"):
        _ask(slow)
    connections[APP].close()  # so that the next test opens another one


def test_a_connection_that_cannot_be_opened_in_time_marks_the_server_as_silent(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = connections.settings[APP]["OPTIONS"]
    monkeypatch.setitem(options, "connect_timeout", 1)
    proxy.stall()

    assert _seconds(_ask) < 1 + MARGIN
    assert _silence_of(proxy).is_known
    monkeypatch.setitem(options, "connect_timeout", LONG)
    assert _seconds(_ask) < MARGIN  # without the mark it would take that long


def test_a_server_that_answers_is_not_probed(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[Any] = []
    monkeypatch.setattr(_silence_of(proxy), "_answers", lambda: probes.append(1) or True)

    for _ in range(20):
        _ask()

    assert not probes


def test_a_check_that_cannot_start_now_is_started_by_the_next_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSE_SECONDS", 0.05)
    silence = base.Silence(lambda: True)
    with no_threads():
        silence.declare()
    assert silence.is_known

    silence.suspect()

    eventually(lambda: not silence.is_known)


def test_postgresql_ends_the_session_of_a_vanished_client(database: None) -> None:
    """Otherwise the locks of a vanished client would last."""
    with connections[APP].cursor() as cursor:
        cursor.execute(
            "SELECT name, reset_val::int FROM pg_settings WHERE name LIKE 'tcp_%' OR name = 'client_connection_check_interval'"
        )
        seconds = dict(cursor.fetchall())

    assert (
        seconds["tcp_keepalives_idle"] + seconds["tcp_keepalives_interval"] * seconds["tcp_keepalives_count"]
        <= 15
    )
    assert (seconds["tcp_user_timeout"], seconds["client_connection_check_interval"]) == (10_000, 5_000)


def test_migrations_have_no_time_limit_for_answers() -> None:
    assert "answer_within_seconds" not in connections.settings[OWNER]["OPTIONS"]
