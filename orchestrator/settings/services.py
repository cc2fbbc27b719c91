"""Where PostgreSQL, Redis and MongoDB are: the environment first, else the embedded servers of ORCHESTRATOR_HOME."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from orchestrator import embedded, flower_auth

# Commands that are of use without any server.
NEEDS_NO_SERVER = {
    "draw_lifecycle",
    "help",
    "makemigrations",
    "collectstatic",
    "spectacular",
    "check",
    "compilemessages",
    "--help",
    "--version",
}
NOWHERE = embedded.Endpoints(
    database_url="postgresql://nobody@127.0.0.1:1/none",
    redis_url="redis://127.0.0.1:1/0",
    mongodb_uri="mongodb://127.0.0.1:1/none",
)

BASE_DIR = Path(__file__).resolve().parent.parent.parent
HOME = Path(os.environ.get("ORCHESTRATOR_HOME") or BASE_DIR / "var").resolve()


def endpoints() -> embedded.Endpoints:
    """The three servers to use. Raises `ImproperlyConfigured` naming what is missing and what to do."""
    named = {
        "postgres": os.environ.get("DATABASE_URL"),
        "redis": os.environ.get("REDIS_URL"),
        "mongo": os.environ.get("MONGODB_URI"),
    }
    missing = tuple(service for service, url in named.items() if not url)
    if named["redis"] and flower_auth.is_starting(sys.argv):
        missing = ()  # it asks no other server
    found = _embedded_endpoints(missing) if missing else NOWHERE
    return embedded.Endpoints(
        database_url=named["postgres"] or found.database_url,
        redis_url=named["redis"] or found.redis_url,
        mongodb_uri=named["mongo"] or found.mongodb_uri,
    )


def _embedded_endpoints(services: tuple[str, ...]) -> embedded.Endpoints:
    home = embedded.ServiceHome(HOME)
    if os.environ.get("ORCHESTRATOR_START_SERVICES") == "1":
        return _as_process(home, embedded.start(home, services=services))
    if found := embedded.find(home):
        return _as_process(home, found)
    if len(sys.argv) < 2 or sys.argv[1] in NEEDS_NO_SERVER:
        return NOWHERE
    raise ImproperlyConfigured(
        f"No servers to work with: DATABASE_URL, REDIS_URL or MONGODB_URI is not set, and no embedded server runs in {HOME}. "
        "Start them with `make up` (or `python -m orchestrator.embedded start`), or set the three variables."
    )


def _as_process(home: embedded.ServiceHome, found: embedded.Endpoints) -> embedded.Endpoints:
    """A standard process reaches the embedded Redis as the user of its kind; people's commands as the default user."""
    user = os.environ.get("ORCHESTRATOR_REDIS_USER")
    if not user or not found.redis_url:
        return found
    return replace(found, redis_url=embedded.redis_url_for(home, found.redis_url, user))
