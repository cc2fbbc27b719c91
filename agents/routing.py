"""The Celery queues: one per agent's role, shared by all tenants, and those of the system's own background tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

PREFIX = "agent__"
OTHER_PREFIX = "queue:"  # of the names that `canonical` understands as well
RUN_TASK = "activities.run"

SYSTEM_QUEUE = "system"  # tasks without a queue of their own; `-Q system` stands for all of the next
DEAD_LETTERS = "dead-letter"
DELIVERABLE_PERIODS = "deliverable-period"
SCHEDULES = "schedules"
OUTBOUND_WEBHOOKS = "webhook-outbound"
DIGESTS = "digest"
PROVIDER_BATCHES = "batches"
NOTIFICATIONS = "notifications__"

#: The queues of the system itself. What there is to do is in the database; a message says that it is time to look.
SYSTEM_QUEUES = (
    SYSTEM_QUEUE,
    DEAD_LETTERS,
    DELIVERABLE_PERIODS,
    SCHEDULES,
    OUTBOUND_WEBHOOKS,
    DIGESTS,
    PROVIDER_BATCHES,
    f"{NOTIFICATIONS}slack",
    f"{NOTIFICATIONS}email",
    f"{NOTIFICATIONS}webhook",
)


def queue_of(role: str) -> str:
    """`agent__<role>`, the name that `celery -A orchestrator worker -Q` takes."""
    return f"{PREFIX}{role}"


def canonical(name: str) -> str:
    """A queue by its own name: `queue:chief_of_staff` is another one of `agent__chief-of-staff`, `queue:digest` of `digest`."""
    if not name.startswith(OTHER_PREFIX):
        return name
    slug = role_named(name.removeprefix(OTHER_PREFIX))
    return slug if slug in SYSTEM_QUEUES else queue_of(slug)


def role_named(slug: str) -> str:
    """A role by its own name, which has hyphens where others write underscores."""
    return slug.replace("_", "-")


def notification_queue(channel_kind: str) -> str:
    """`notifications__<kind>`, the queue of messages to people over this kind of channel."""
    return f"{NOTIFICATIONS}{channel_kind}"


def is_pattern(name: str) -> bool:
    """Whether a name that a worker was asked for stands for the queues of all roles that match it, as `agent__data-*` does."""
    return name.startswith(PREFIX) and any(sign in name for sign in "*?[")


def follows(queues: Iterable[str]) -> bool:
    """Whether a worker that was asked for these serves roles that are added while it runs: without any name, or with a pattern."""
    names = list(queues)
    return not names or any(map(is_pattern, names))


def select_queues(queue_names: Iterable[str], roles: Iterable[str]) -> list[str]:
    """The queues that a worker takes from which was asked for these: every one of them if it was asked for none."""
    names, queues = list(queue_names), [queue_of(role) for role in sorted(roles)]
    if not names:
        return [*queues, *SYSTEM_QUEUES]
    found: dict[str, None] = {}
    for name in names:
        found.update(
            dict.fromkeys(queue for queue in queues if fnmatchcase(queue, name))
            if is_pattern(name)
            else {name: None}
        )
    return [*found, *SYSTEM_QUEUES] if SYSTEM_QUEUE in names else list(found)


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
