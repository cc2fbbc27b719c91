"""Which Celery queue an agent's role has. One queue per role, shared by all tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PREFIX = "agent__"
RUN_TASK = "activities.run"


def queue_of(role: str) -> str:
    """`agent__<role>`, the name that `celery -A orchestrator worker -Q` takes."""
    return f"{PREFIX}{role}"


def roles_of(queues: Iterable[str]) -> list[str]:
    """The roles that a worker of these queues serves."""
    return sorted(name.removeprefix(PREFIX) for name in queues if name.startswith(PREFIX))


def route(
    name: str,
    args: Any,
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    task: Any = None,
    **extra: Any,
) -> dict[str, str] | None:
    """Celery's router: runs go to the queue of their role, everything else to the default queue."""
    if name == RUN_TASK and kwargs and "role" in kwargs:
        return {"queue": queue_of(kwargs["role"])}
    return None
