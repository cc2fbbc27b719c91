"""Ports, and URLs of PostgreSQL, Redis and MongoDB: from the environment, or else of the embedded servers in ORCHESTRATOR_HOME."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from orchestrator import embedded, flower_auth

# Commands that work without any server.
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
UNREACHABLE = embedded.Endpoints(
    database_url="postgresql://nobody@127.0.0.1:1/none",
    redis_url="redis://127.0.0.1:1/0",
    mongodb_uri="mongodb://127.0.0.1:1/none",
)


def whole_number(variable: str, default: int, *, most: int) -> int:
    """Return the number in an environment variable. Raises `ImproperlyConfigured` if it is not a whole number from 1 to `most`."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= most:
        raise ImproperlyConfigured(f"{variable} must be a whole number from 1 to {most}, not {text[:40]!r}.")
    return int(text)


def ports(home: embedded.ServiceHome) -> tuple[int, int]:
    """Return the ports of web and Flower: from the environment, or else of the `make up` that runs in this home."""
    running = home.read_ports()
    return (
        whole_number("PORT", running.get("PORT", 8000), most=65_535),
        whole_number("FLOWER_PORT", running.get("FLOWER_PORT", 5555), most=65_535),
    )


BASE_DIR = Path(__file__).resolve().parent.parent.parent
HOME = embedded.ServiceHome.from_environment().path
# Read first, so that a wrong port is refused before any embedded server starts.
PORT, FLOWER_PORT = ports(embedded.ServiceHome(HOME))


def endpoints() -> embedded.Endpoints:
    """Return the URLs of the three servers. Raises `ImproperlyConfigured`, which says what to do, if one is missing."""
    from_environment = {
        "postgres": os.environ.get("DATABASE_URL"),
        "redis": os.environ.get("REDIS_URL"),
        "mongo": os.environ.get("MONGODB_URI"),
    }
    missing = tuple(service for service, url in from_environment.items() if not url)
    if from_environment["redis"] and flower_auth.is_starting(sys.argv):
        missing = ()  # Flower uses no other server
    others = _embedded_endpoints(missing) if missing else UNREACHABLE
    return embedded.Endpoints(
        database_url=from_environment["postgres"] or others.database_url,
        redis_url=from_environment["redis"] or others.redis_url,
        mongodb_uri=from_environment["mongo"] or others.mongodb_uri,
    )


def _embedded_endpoints(services: tuple[str, ...]) -> embedded.Endpoints:
    home = embedded.ServiceHome(HOME)
    if os.environ.get("ORCHESTRATOR_START_SERVICES") == "1":
        return _with_redis_user(home, embedded.start(home, services=services))
    if running := embedded.find(home):
        return _with_redis_user(home, running)
    if len(sys.argv) < 2 or sys.argv[1] in NEEDS_NO_SERVER or not {"-h", "--help"}.isdisjoint(sys.argv[2:]):
        return UNREACHABLE
    raise ImproperlyConfigured(
        f"No servers: DATABASE_URL, REDIS_URL or MONGODB_URI is not set, and no embedded server is running in {HOME}. "
        "Start them with `make up` (or `python -m orchestrator.embedded start`), or set the three variables."
    )


def _with_redis_user(home: embedded.ServiceHome, endpoints: embedded.Endpoints) -> embedded.Endpoints:
    """Use the Redis user of the process's kind. Commands of people use the default user."""
    user = os.environ.get("ORCHESTRATOR_REDIS_USER")
    if not user or not endpoints.redis_url:
        return endpoints
    return replace(endpoints, redis_url=embedded.redis_url_for(home, endpoints.redis_url, user))
