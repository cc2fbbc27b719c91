"""The admission scripts as functions. Each raises `redis.RedisError` when Redis does not answer in time."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import redis

from activities.admission import keys
from tenants import tracing
from tenants.redis import client

_FACTS = {"db.system.name": "redis", "db.operation.name": "EVALSHA"}
FOLDER = Path(__file__).parent / "lua"


class Closed(Exception):
    """Redis was wiped and is not rebuilt yet: nothing may be granted, nothing is known about slots."""


@cache
def _source(name: str) -> str:
    parts = ((FOLDER / f"{part}.lua").read_text(encoding="utf-8") for part in ("library", name))
    return "\n".join((f'local LAYOUT = "{keys.LAYOUT}"', *parts))


@cache
def _sha(name: str) -> str:
    return redis.commands.core.Script(client(), _source(name)).sha  # computed here, needs no server


def run(name: str, *arguments: str | bytes | int) -> Any:
    """Run one script by its digest, sending its text only when the server does not have it."""
    connection = client()
    with tracing.part(f"redis {name}", tracing.CLIENT, **_FACTS):
        try:
            return connection.evalsha(_sha(name), 1, keys.pointer(), *arguments)
        except redis.exceptions.NoScriptError:
            return connection.eval(_source(name), 1, keys.pointer(), *arguments)


def start(activity_id: UUID, grant: str) -> bool:
    """Whether the grant still holds; from now on its slots count as in use. Raises `Closed`."""
    return _flag(run("start", str(activity_id), grant))


def accept(activity_id: UUID, grant: str) -> bool:
    """Give the worker's seat back and keep the other slots. Raises `Closed`."""
    return _flag(run("accept", str(activity_id), grant))


def _flag(answer: int) -> bool:
    if answer < 0:
        raise Closed
    return bool(answer)


class Slot(NamedTuple):
    """A held slot as Redis knows it."""

    activity_id: UUID
    grant: str
    started: bool
    age_seconds: float
    tenant_id: UUID
    role: str
    seated: bool


def audit(*, withdraw_orphans: bool) -> list[Slot]:
    """All held slots. Charges running work to its tenant on the way. Raises `Closed`."""
    answer = run("audit", int(withdraw_orphans))
    if answer == b"closed":
        raise Closed
    return [
        Slot(UUID(activity), grant, bool(started), age / 1000, UUID(tenant), role, bool(seated))
        for activity, grant, started, age, tenant, role, seated in orjson.loads(answer)
    ]


class Unstarted(NamedTuple):
    """A grant that no worker has taken up yet."""

    role: str
    tenant_id: UUID
    age_seconds: float


def unstarted() -> list[Unstarted]:
    """All grants that no worker has taken up yet. Changes nothing. Raises `Closed`."""
    answer = run("unstarted")
    if answer == b"closed":
        raise Closed
    return [Unstarted(role, UUID(tenant), age / 1000) for role, tenant, age in orjson.loads(answer)]


def inspect(activity_id: UUID) -> dict[str, Any]:
    """Where the activity stands: see lua/inspect.lua for the shape."""
    answer: dict[str, Any] = orjson.loads(run("inspect", str(activity_id)))
    return answer
