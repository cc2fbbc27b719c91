"""Background tasks: what the system has to do besides running agents, each on a queue of its own.

The work is rows in PostgreSQL; a message only hints that there are some. Anyone who gets one looks for itself, so a hint that is lost,
late or double changes nothing: while rows wait, the leader hints again. One statement asks for all background tasks together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from celery import shared_task
from django.db import connections
from django.db.models import QuerySet

from activities import publishing
from agents.routing import SYSTEM_QUEUES
from tenants import tracing
from tenants.context import SYSTEM

REPEAT_SECONDS = 3.0  # between hints of one background task: time enough for a worker to take one up and to get through some rows
EXPIRY = timedelta(
    days=1
)  # a hint this old says nothing; workers compare by their own clocks, so it is well above what these may differ by


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Work for any worker that takes from the queue. It is safe to do twice, late or not at all, and returns how much was done.

    `task` is its name in messages: it outlives the code. `waiting` gives the rows, of all tenants, for which there is something to do,
    by an index; it is asked for once per process, so it takes the time from the database (`Now()`). Without it, Celery beat sends the
    task. `keeps_result`: for work that is seldom and long, its results are kept for the operators (Task results in the admin).
    """

    name: str
    queue: str
    task: str
    work: Callable[..., int]
    waiting: Callable[[], QuerySet[Any]] | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    keeps_result: bool = False


_tasks: dict[str, BackgroundTask] = {}
_known_to_celery: set[str] = set()


def register(*tasks: BackgroundTask) -> None:
    """Give the tasks to Celery, and have the process that leads look for what waits. Registering a name again replaces it.

    Raises `ValueError` for a queue that no worker would take from.
    """
    for task in tasks:
        if task.queue not in SYSTEM_QUEUES:
            raise ValueError(f"{task.queue} is not among agents.routing.SYSTEM_QUEUES")
        if task.task not in _known_to_celery:
            _known_to_celery.add(task.task)
            work = tracing.background_task(task.task, task.work)
            shared_task(name=task.task, ignore_result=not task.keeps_result)(work)
        _tasks[task.name] = task
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
    task = _tasks[name]
    return publishing.hint(task.task, task.arguments, queue=task.queue, expires_after=EXPIRY)


def _with_something_waiting(names: list[str]) -> list[str]:
    """One statement for all of them."""
    if not names:
        return []
    conditions = [_condition(name) for name in names]
    question = " UNION ALL ".join(f"SELECT %s WHERE {sql}" for sql, _ in conditions)
    parameters = [
        value for name, (_, values) in zip(names, conditions, strict=True) for value in (name, *values)
    ]
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(question, parameters)
        return [name for (name,) in cursor.fetchall()]


@cache
def _condition(name: str) -> tuple[str, tuple[Any, ...]]:
    """Whether the background task has rows, as SQL. Building it costs more than asking it, so it is kept."""
    waiting = _tasks[name].waiting
    if waiting is None:
        return "FALSE", ()
    sql, values = waiting().order_by().query.exists().sql_with_params()
    return f"EXISTS ({sql})", values
