"""A PostgreSQL that says nothing, and closes nothing either, keeps nobody waiting for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connections

from tenants.context import APP, OWNER, tenant_scope
from tenants.models import Tenant
from tenants.postgresql import base
from tenants.sql import Statement
from tests.engine import elsewhere, eventually
from tests.network import Proxy, proxy_to

NOTICE, PATIENCE, GRACE = 0.2, 2, 0.1
MARGIN = 10.0  # of a machine that is busy


@pytest.fixture
def proxy(database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Between this process and PostgreSQL, for the alias of requests and workers."""
    monkeypatch.setattr(base, "NOTICE_SECONDS", NOTICE)
    monkeypatch.setattr(base, "PATIENCE_SECONDS", PATIENCE)
    monkeypatch.setattr(base, "GRACE_SECONDS", GRACE)
    monkeypatch.setattr(base, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(base, "_servers", {})  # the port may be that of an earlier test, which was silent
    settings = connections.settings[APP]
    connections[APP].close()
    with proxy_to(settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432)) as between:
        monkeypatch.setitem(settings, "PORT", str(between.port))
        yield between
        connections[APP].close()


def _ask(question: str = "SELECT 1") -> Any:
    with connections[APP].cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()[0]


def _heard(proxy: Proxy) -> base.Silence:
    return base.of(connections[APP].get_connection_params())


def _seconds(action: Any) -> float:
    began = time.monotonic()
    with pytest.raises(OperationalError):
        action()
    return time.monotonic() - began


def test_whoever_waits_for_a_silent_server_gives_up_within_seconds(proxy: Proxy) -> None:
    assert _ask() == 1

    proxy.fall_silent()

    assert _seconds(_ask) < NOTICE + PATIENCE + MARGIN
    assert connections[APP].connection.closed


def test_once_it_is_known_to_be_silent_nobody_else_waits(
    proxy: Proxy, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_scope() -> None:
        with tenant_scope(tenant.pk):
            Statement("one", "SELECT 1 AS one").run({})

    _ask()
    proxy.fall_silent()
    _heard(proxy).suspect()
    eventually(lambda: _heard(proxy).is_known)
    monkeypatch.setattr(base, "PATIENCE_SECONDS", 3 * MARGIN)

    assert _seconds(in_scope) < GRACE + MARGIN, "a connection that was there"
    assert elsewhere(lambda: _seconds(_ask)) < 2.5, (
        "one that would have to be made, for which 3 s are allowed"
    )


def test_as_soon_as_it_answers_again_everything_goes_on(proxy: Proxy) -> None:
    _ask()
    proxy.fall_silent()
    _seconds(_ask)

    proxy.go_on()

    eventually(lambda: not _heard(proxy).is_known)
    connections[APP].close()
    assert _ask() == 1


def test_a_statement_may_take_its_time_while_the_server_answers_others(proxy: Proxy) -> None:
    assert _ask(f"SELECT 1 FROM pg_sleep({NOTICE * 6})") == 1
    assert not _heard(proxy).is_known


def test_a_connection_alone_that_says_nothing_is_given_up_as_well(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings[APP]["OPTIONS"], "answer_within_seconds", 1.0)
    connections[APP].close()

    assert 1.0 < _seconds(lambda: _ask("SELECT 1 FROM pg_sleep(20)")) < 1.0 + MARGIN
    assert not _heard(proxy).is_known


def test_a_connection_that_is_not_made_in_time_is_proof_enough(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.fall_silent()

    assert _seconds(_ask) < 3 + MARGIN
    assert _heard(proxy).is_known
    assert _seconds(_ask) < 2.5  # of the three that it takes who does not know


def test_nothing_is_asked_of_a_server_that_answers(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(_heard(proxy), "_answers", lambda: tried.append(1) or True)

    for _ in range(20):
        _ask()

    assert not tried


def test_a_session_can_be_left_by_a_client_that_vanished(database: None) -> None:
    """PostgreSQL watches its clients as they watch it, so that nobody's locks outlive them for long."""
    with connections[APP].cursor() as cursor:
        cursor.execute(
            "SELECT name, reset_val::int FROM pg_settings WHERE name LIKE 'tcp_%' OR name = 'client_connection_check_interval'"
        )
        found = dict(cursor.fetchall())

    assert (
        found["tcp_keepalives_idle"] + found["tcp_keepalives_interval"] * found["tcp_keepalives_count"] <= 15
    )
    assert (found["tcp_user_timeout"], found["client_connection_check_interval"]) == (10_000, 5_000)


def test_migrations_wait_as_long_as_they_must() -> None:
    assert "answer_within_seconds" not in connections.settings[OWNER]["OPTIONS"]
