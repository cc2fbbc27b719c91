"""Background tasks: the work of the system besides running agents, on queues of their own.

The work consists of rows in PostgreSQL; a message only hints that some wait. The worker that receives a hint reads the rows, so a lost,
late or duplicate hint does no harm: while rows wait, the leader sends another. One statement checks all background tasks together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from celery import shared_task
from django.db import OperationalError
from django.db.models import QuerySet

from activities import publishing
from agents.routing import SYSTEM_QUEUES
from tenants import outages, tracing
from tenants.context import SYSTEM
from tenants.sql import Array, Statement

# Between hints for one background task: a worker needs time to receive one and to process some rows.
REPEAT_SECONDS = 3.0
# An older hint means nothing. Workers compare it with their own clocks, so it is far above any difference between clocks.
EXPIRY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Work for any worker that consumes the queue. Doing it twice or late is safe. `work` returns how much it has done.

    `task` is the name in messages; it never changes. `waiting` selects the rows of all tenants that need work, and must use an index. It
    is called once per process, so it takes the time from the database (`Now()`). A task without `waiting` is sent by Celery beat.
    `keeps_result` stores the result for operators (Task results in the admin); it is meant for rare and long work.
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
    """Register the tasks with Celery, and have the leader check for waiting rows. Registering a name again replaces the task.

    Raises `ValueError` for a queue that no worker consumes.
    """
    for task in tasks:
        if task.queue not in SYSTEM_QUEUES:
            raise ValueError(f"{task.queue} is not among agents.routing.SYSTEM_QUEUES")
        if task.task not in _known_to_celery:
            _known_to_celery.add(task.task)
            work = tracing.background_task(task.task, task.work)
            shared_task(name=task.task, ignore_result=not task.keeps_result)(work)
        _tasks[task.name] = task
    _waiting_query.cache_clear()


@dataclass(slots=True)
class Reminder:
    """Sends hints for waiting work. Runs in the leader; a second one would only send duplicate hints."""

    hinted: dict[str, float] = field(default_factory=dict)

    def remind(self) -> list[str]:
        """Send a hint for every background task with waiting rows. Returns the names of the hinted tasks. Raises the broker's error."""
        now = time.monotonic()
        candidates = [name for name in _tasks if now - self._last(name) >= REPEAT_SECONDS]
        # Tasks that share a queue take turns, because a queue holds only one hint at a time.
        hinted = [name for name in sorted(_with_waiting_rows(candidates), key=self._last) if _hint(name)]
        self.hinted.update(dict.fromkeys(hinted, now))
        return hinted

    def _last(self, name: str) -> float:
        return self.hinted.get(name, -1e9)


def _hint(name: str) -> bool:
    task = _tasks[name]
    return publishing.hint(task.task, task.arguments, queue=task.queue, expires_after=EXPIRY)


def _with_waiting_rows(names: list[str]) -> list[str]:
    if not names:
        return []
    try:
        return [row.name for row in _waiting_query(tuple(_tasks)).run({"names": Array(names)}, using=SYSTEM)]
    except OperationalError as error:
        if outages.is_away(error):
            raise
    # One of the tasks has so many rows that their check takes too long. It gets a hint anyway, and keeps no other from its own.
    if len(names) == 1:
        return names
    return [name for one in names for name in _with_waiting_rows([one])]


@cache
def _waiting_query(names: tuple[str, ...]) -> Statement:
    """Return the statement that selects those of its parameter `names` that have waiting rows, among these tasks.

    Planning it takes ten times as long as executing it.
    """
    parts = []
    for name in names:
        if (waiting := _tasks[name].waiting) is not None:
            rows = Statement.of_queryset(name, waiting().order_by().values("pk")[:1], using=SYSTEM)
            # CASE, because PostgreSQL might evaluate EXISTS first in a conjunction, also for tasks that nobody asks for.
            parts.append(
                f"SELECT '{name}' AS name WHERE CASE WHEN '{name}' = ANY(%(names)s::text[]) THEN EXISTS ({rows.text}) ELSE false END"
            )
    return Statement("waiting_background_tasks", " UNION ALL ".join(parts))
