"""Background tasks: what the system has to do besides running agents, each on a queue of its own.

The work is rows in PostgreSQL; a message only hints that there are some. Whoever gets one looks for itself, so a hint that is lost,
late or double changes nothing: while rows wait, the leader hints again. One statement asks for all background tasks together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from activities import publishing
from agents.routing import SYSTEM_QUEUES
from tenants.context import SYSTEM

REPEAT_SECONDS = 3.0  # between hints of one background task: time enough for a worker to take one up and to get through some rows
EXPIRY = timedelta(
    days=1
)  # a hint this old says nothing; workers compare by their own clocks, so it is well above what these may differ by


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """A task that is hinted at on its queue while there are rows for it.

    `waiting` gives these rows, of all tenants, by an index. It is asked for once per process, so it takes the time from the
    database (`Now()`).
    """

    name: str
    queue: str
    task: str
    waiting: Callable[[], QuerySet[Any]]
    arguments: Mapping[str, str] = field(default_factory=dict)


_tasks: dict[str, BackgroundTask] = {}


def register(errand: BackgroundTask) -> None:
    """Have the background task run from now on, in whichever process leads. Registering it again replaces it.

    Raises `ValueError` for a queue that no worker would take from.
    """
    if errand.queue not in SYSTEM_QUEUES:
        raise ValueError(f"{errand.queue} is not among agents.routing.SYSTEM_QUEUES")
    _tasks[errand.name] = errand
    _condition.cache_clear()


@dataclass(slots=True)
class Reminder:
    """Hints at what waits. Held by the leader; two of them would only hint twice."""

    hinted: dict[str, float] = field(default_factory=dict)

    def remind(self) -> list[str]:
        """Hint at every background task that has something to do; returns the names of those with a new hint. Raises the broker's error."""
        now = time.monotonic()
        quiet = [name for name in _tasks if now - self._last(name) >= REPEAT_SECONDS]
        # Background tasks that share a queue take turns: only one hint lies in it at a time.
        hinted = [name for name in sorted(_with_something_waiting(quiet), key=self._last) if _hint(name)]
        self.hinted.update(dict.fromkeys(hinted, now))
        return hinted

    def _last(self, name: str) -> float:
        return self.hinted.get(name, -1e9)


def _hint(name: str) -> bool:
    errand = _tasks[name]
    return publishing.hint(errand.task, errand.arguments, queue=errand.queue, expires_after=EXPIRY)


def _with_something_waiting(names: list[str]) -> list[str]:
    """One statement for all of them."""
    if not names:
        return []
    conditions = [_condition(name) for name in names]
    question = " UNION ALL ".join(f"SELECT %s WHERE {sql}" for sql, _ in conditions)
    given = [value for name, (_, values) in zip(names, conditions, strict=True) for value in (name, *values)]
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(question, given)
        return [name for (name,) in cursor.fetchall()]


@cache
def _condition(name: str) -> tuple[str, tuple[Any, ...]]:
    """Whether the background task has rows, as SQL. Building it costs more than asking it, so it is kept."""
    sql, values = _tasks[name].waiting().order_by().query.exists().sql_with_params()
    return f"EXISTS ({sql})", values
