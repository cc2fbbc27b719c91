"""Redis clients for the whole project, and Lua scripts.

Every call ends: if Redis is down or frozen, it raises `redis.RedisError` after the timeout at the latest. A connection that the server has
closed, or that leads to a server which has become a replica, is replaced once without an error. A call that timed out is never repeated,
because the server may have executed it. A forked child gets pools of its own.
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

# A connection that was idle for longer is tested before use, to notice a restarted server.
HEALTH_CHECK_SECONDS = 15


def client(*, timeout_seconds: float | None = None) -> redis.Redis:
    """Return the shared client. Its answers are bytes. Thread-safe.

    `timeout_seconds`: for callers that prefer to continue without Redis to waiting for ORCHESTRATOR_REDIS_TIMEOUT_SECONDS.
    """
    patience = settings.ORCHESTRATOR_REDIS_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    return _client(settings.REDIS_URL, patience)


def broker() -> redis.Redis | None:
    """Return the client of Celery's broker, for reading only; None if the broker is not Redis."""
    url: str = settings.CELERY_BROKER_URL
    if not url.startswith(("redis://", "rediss://", "unix://")):
        return None
    return _client(url, settings.ORCHESTRATOR_REDIS_TIMEOUT_SECONDS)


@lru_cache(maxsize=8)
def _client(url: str, timeout_seconds: float) -> redis.Redis:
    client: redis.Redis = redis.Redis.from_url(
        url,
        protocol=2,  # nothing needs RESP3, whose handshake costs a round trip
        driver_info=None,  # saves two more round trips for every new connection
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        **({} if url.startswith("unix:") else {"socket_keepalive": True}),
        health_check_interval=HEALTH_CHECK_SECONDS,
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError, redis.ReadOnlyError)),
    )
    return client


# A thread that does not exist in the child may hold a lock of the parent's pool.
os.register_at_fork(after_in_child=_client.cache_clear)


class SentCommand:
    """A command whose answer is read later. Until then it occupies a connection. Not thread-safe.

    Creating it raises `redis.RedisError` if the command cannot be sent.
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
        try:
            return self._connection is None or bool(self._connection.can_read(0))
        except redis.RedisError as error:
            # The connection was closed, and must not be read: it has no parser, or would be opened again.
            self._answer = error
            self._leave()
            return True

    def read(self) -> Any:
        """Return the answer. Waits for the client's timeout at most. Raises `redis.RedisError`."""
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
    """A Lua script, one file per verb. `run` sends its hash, and its text only if the server does not have it."""

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
        """Execute the script in one round trip. Raises `redis.RedisError`."""
        try:
            return client.evalsha(self.sha, len(keys), *keys, *arguments)
        except redis.exceptions.NoScriptError:
            return client.eval(self.text, len(keys), *keys, *arguments)
