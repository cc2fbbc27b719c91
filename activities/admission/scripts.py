"""The admission scripts as functions. Each raises `redis.RedisError` when Redis does not answer in time."""

from __future__ import annotations

import hashlib
import logging
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import redis

from activities.admission import keys
from tenants import tracing
from tenants.redis import SentCommand, client

logger = logging.getLogger(__name__)

_FACTS = {"db.system.name": "redis", "db.operation.name": "EVALSHA"}
FOLDER = Path(__file__).parent / "lua"
#: A function of the library, from the line that begins it to its `end` at the margin.
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_WORD, _COMMENT = re.compile(r"\w+"), re.compile(r"--.*")


class Closed(Exception):
    """Redis was wiped or its data was inconsistent, and it is not rebuilt yet: nothing is granted, and no slot is known."""


@cache
def _source(name: str) -> str:
    files, library, script = (
        (FOLDER / f"{part}.lua").read_text(encoding="utf-8") for part in ("files", "library", name)
    )
    # A script may return anywhere, but its changes must be written before its answer is returned.
    body = "\n".join(
        ("local function run()", script, "end", "local answer = run()", "write_back()", "return answer")
    )
    shared = f'local LAYOUT = "{keys.LAYOUT}"\n{files}\n{library}'
    return f"{_needed_functions(shared, body)}\n{body}"


def _needed_functions(library: str, script: str) -> str:
    """Return the library without the functions that the script cannot reach, because Redis creates each function again in every call."""
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(library)}
    used: set[str] = set()
    unread = [script, _FUNCTION.sub("", library)]
    while unread:
        words = set(_WORD.findall(_COMMENT.sub("", unread.pop())))
        called = (words & functions.keys()) - used
        used |= called
        unread += [functions[name] for name in called]
    return _FUNCTION.sub(lambda found: found[0] if found[1] in used else "", library)


@cache
def _sha(name: str) -> str:
    return hashlib.sha1(_source(name).encode(), usedforsecurity=False).hexdigest()


def run(name: str, *arguments: str | bytes | int) -> Any:
    """Run a script by its digest. Its text is sent only if the server does not have it.

    Raises `Closed` if the script could not read the data. The data is then invalidated, and the leader rebuilds it.
    """
    connection = client()
    with tracing.part(f"redis {name}", tracing.CLIENT, **_FACTS):
        try:
            try:
                return connection.evalsha(_sha(name), 1, keys.pointer(), *arguments)
            except redis.exceptions.NoScriptError:
                return connection.eval(_source(name), 1, keys.pointer(), *arguments)
        except redis.exceptions.ResponseError as error:
            if not _is_about_data(error):
                raise
            invalidate(f"{name}: {error}")
            raise Closed from error


def _is_about_data(error: redis.exceptions.ResponseError) -> bool:
    """Whether a key has a wrong type or value. False if the server is full, read-only, busy or refuses the command."""
    code = str(error).partition(" ")[0]
    return type(error) is redis.exceptions.ResponseError and (code == "WRONGTYPE" or not code.isupper())


def invalidate(reason: str) -> None:
    """Stop granting until the leader has rebuilt admission from PostgreSQL."""
    logger.error("Admission is broken", extra={"action": "admission_broken", "reason": reason})
    client().delete(keys.pointer())


def check_structure() -> None:
    """Check that the data in Redis is consistent. Raises `Closed`, and invalidates the data, if it is not."""
    place = b"0"
    while True:
        place = run("structure", place)
        if place.startswith(b"broken"):
            logger.error(
                "Admission is broken", extra={"action": "admission_broken", "reason": place.decode()}
            )
        if not place.isdigit():
            raise Closed
        if place == b"0":
            return


def start(activity_id: UUID, grant: str) -> bool:
    """Mark the slots of the grant as in use. Returns False if the grant does not hold them any more. Raises `Closed`."""
    return _flag(run("start", str(activity_id), grant))


class PassedSlot:
    """A request to pass the slot of a run that ends on to the activity that follows it. It is sent on creation and answered later."""

    _is_known = False  # whether the server has the script

    def __init__(self, ended: UUID, grant: str, following: UUID) -> None:
        """Send the request. Raises `redis.RedisError` if it cannot be sent."""
        command = ("EVALSHA", _sha("pass_on")) if PassedSlot._is_known else ("EVAL", _source("pass_on"))
        self._sent = SentCommand(client(), *command, 1, keys.pointer(), str(ended), grant, str(following))

    def grant_so_far(self) -> str:
        """Return the grant of the activity that follows; empty if it must be offered, or without an answer yet. Never waits for Redis."""
        try:
            return self._read() if self._sent.is_answered() else ""
        except redis.RedisError:
            return ""

    def grant(self) -> str | None:
        """As `grant_so_far`, but wait for the answer. None if there was none, so that the activity may or may not hold the slot."""
        try:
            return self._read()
        except redis.exceptions.NoScriptError:
            PassedSlot._is_known = False
            return ""
        except redis.exceptions.ResponseError as error:
            if _is_about_data(error):
                invalidate(f"pass_on: {error}")
            return None
        except redis.RedisError:
            return None

    def _read(self) -> str:
        answer = self._sent.read()
        PassedSlot._is_known = True
        return "" if answer == b"closed" else answer.decode()


def accept(activity_id: UUID, grant: str) -> bool:
    """Release the worker's seat and keep the other slots. Raises `Closed`."""
    return _flag(run("accept", str(activity_id), grant))


def _flag(answer: int) -> bool:
    if answer < 0:
        raise Closed
    return bool(answer)


class Slot(NamedTuple):
    activity_id: UUID
    grant: str
    started: bool
    age_seconds: float
    tenant_id: UUID
    role: str
    seated: bool


def audit(*, withdraw_orphans: bool) -> list[Slot]:
    """Return all held slots, and charge running work to its tenant. Raises `Closed`."""
    answer = run("audit", int(withdraw_orphans))
    if answer == b"closed":
        raise Closed
    return [
        Slot(UUID(activity), grant, bool(started), age / 1000, UUID(tenant), role, bool(seated))
        for activity, grant, started, age, tenant, role, seated in orjson.loads(answer)
    ]


class Unstarted(NamedTuple):
    """A grant that no worker has started yet."""

    role: str
    tenant_id: UUID
    age_seconds: float


def unstarted() -> list[Unstarted]:
    """Return all grants that no worker has started yet. Raises `Closed`."""
    answer = run("unstarted")
    if answer == b"closed":
        raise Closed
    return [Unstarted(role, UUID(tenant), age / 1000) for role, tenant, age in orjson.loads(answer)]


def inspect(activity_id: UUID) -> dict[str, Any]:
    """Return the state of an activity in admission. For the shape see lua/inspect.lua."""
    answer: dict[str, Any] = orjson.loads(run("inspect", str(activity_id)))
    return answer
