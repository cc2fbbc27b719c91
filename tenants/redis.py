"""Redis for the whole project: connections, one pool per process and patience, and the scripts that run there.

Every call ends: a Redis that is down or frozen costs at most the timeout and then raises `redis.RedisError`.
A connection that the server closed in the meantime is replaced once without the caller noticing, as is one to a server
that has become a replica; a timeout is never repeated, since the server may have done the work. A forked child begins
with pools of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

HEALTH_CHECK_SECONDS = 15  # an idle connection is asked before use, so that a restarted server is noticed


def client(*, timeout_seconds: float | None = None) -> redis.Redis:
    """The shared client; answers are bytes. Threads may share it.

    `timeout_seconds` is for callers who would rather do without Redis than wait
    ORCHESTRATOR_REDIS_TIMEOUT_SECONDS.
    """
    patience = settings.ORCHESTRATOR_REDIS_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    return _client(settings.REDIS_URL, patience)


def broker() -> redis.Redis | None:
    """The client of Celery's broker, to be looked at only; None where the broker is no Redis."""
    url: str = settings.CELERY_BROKER_URL
    if not url.startswith(("redis://", "rediss://", "unix://")):
        return None
    return _client(url, settings.ORCHESTRATOR_REDIS_TIMEOUT_SECONDS)


@lru_cache(maxsize=8)
def _client(url: str, timeout_seconds: float) -> redis.Redis:
    client: redis.Redis = redis.Redis.from_url(
        url,
        protocol=2,  # nothing here needs RESP3, and its greeting costs a round trip
        driver_info=None,  # two more round trips saved on every new connection
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        socket_keepalive=True,
        health_check_interval=HEALTH_CHECK_SECONDS,
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError, redis.ReadOnlyError)),
    )
    return client


# A lock of the parent's pool may be held by a thread that does not exist in the child.
os.register_at_fork(after_in_child=_client.cache_clear)


class SentCommand:
    """A command whose answer is read later, on a connection that nobody else uses until then. For one thread.

    Making one raises `redis.RedisError` when the command cannot be sent.
    """

    def __init__(self, client: redis.Redis, *command: str | int | bytes) -> None:
        self._pool = client.connection_pool
        self._connection: Any = self._pool.get_connection()
        self._answer: Any = None
        try:
            self._connection.send_command(*command)
        except BaseException:
            self._leave()
            raise

    def is_answered(self) -> bool:
        """Whether `read` would not wait."""
        return self._connection is None or bool(self._connection.can_read(0))

    def read(self) -> Any:
        """The answer, at the latest when the client's patience is over. Raises `redis.RedisError`."""
        if self._connection is not None:
            try:
                self._answer = self._connection.read_response()
            except redis.RedisError as error:
                self._answer = error
            finally:
                self._leave()
        if isinstance(self._answer, redis.RedisError):
            raise self._answer
        return self._answer

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        self._pool.release(connection)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script: one file per verb. `run` sends its hash and, only when the server does not know it (any more), its text."""

    name: str
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def load(cls, folder: Path, name: str) -> Script:
        return cls(name=name, text=(folder / f"{name}.lua").read_text(encoding="utf-8"))

    def run(
        self, client: redis.Redis, keys: Sequence[str], arguments: Sequence[str | int | float | bytes] = ()
    ) -> Any:
        """Execute in one round trip. Raises `redis.RedisError`."""
        try:
            return client.evalsha(self.sha, len(keys), *keys, *arguments)
        except redis.exceptions.NoScriptError:
            return client.eval(self.text, len(keys), *keys, *arguments)
