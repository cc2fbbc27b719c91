"""The Celery queues: one per role, shared by all tenants, and those of the system's background tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

PREFIX = "agent__"
ALIAS_PREFIX = "queue:"  # of the alternative names that `canonical` accepts
RUN_TASK = "activities.run"

SYSTEM_QUEUE = "system"  # tasks without a separate queue; `-Q system` means all system queues
DEAD_LETTERS = "dead-letter"
DELIVERABLE_PERIODS = "deliverable-period"
SCHEDULES = "schedules"
OUTBOUND_WEBHOOKS = "webhook-outbound"
DIGESTS = "digest"
PROVIDER_BATCHES = "batches"
NOTIFICATIONS = "notifications__"

#: The queues of the system. The work itself is in the database; a message is only a hint to look there.
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
    """Return `agent__<role>`, the name for `celery -A orchestrator worker -Q`."""
    return f"{PREFIX}{role}"


def canonical(name: str) -> str:
    """Return a queue's real name: `queue:chief_of_staff` is an alias of `agent__chief-of-staff`, `queue:digest` of `digest`."""
    if not name.startswith(ALIAS_PREFIX):
        return name
    slug = role_named(name.removeprefix(ALIAS_PREFIX))
    return slug if slug in SYSTEM_QUEUES else queue_of(slug)


def role_named(slug: str) -> str:
    """Return the role's name, with hyphens in place of underscores."""
    return slug.replace("_", "-")


def notification_queue(channel_kind: str) -> str:
    """Return `notifications__<kind>`, the queue of messages to people over this kind of channel."""
    return f"{NOTIFICATIONS}{channel_kind}"


def is_pattern(name: str) -> bool:
    """Whether the name is a pattern for queues of roles, such as `agent__data-*`."""
    return name.startswith(PREFIX) and any(sign in name for sign in "*?[")


def serves_new_roles(queues: Iterable[str]) -> bool:
    """Whether a worker with these queue names serves roles that are added while it runs: if there are none, or any is a pattern."""
    names = list(queues)
    return not names or any(map(is_pattern, names))


def select_queues(queue_names: Iterable[str], roles: Iterable[str]) -> list[str]:
    """Return the queues for a worker with these queue names: all queues if there are no names."""
    names, queues = list(queue_names), [queue_of(role) for role in sorted(roles)]
    if not names:
        return [*queues, *SYSTEM_QUEUES]
    selected: dict[str, None] = {}
    for name in names:
        selected.update(
            dict.fromkeys(queue for queue in queues if fnmatchcase(queue, name))
            if is_pattern(name)
            else {name: None}
        )
    return [*selected, *SYSTEM_QUEUES] if SYSTEM_QUEUE in names else list(selected)


def roles_of(queues: Iterable[str]) -> list[str]:
    """Return the roles that a worker of these queues serves."""
    return sorted(name.removeprefix(PREFIX) for name in queues if name.startswith(PREFIX))


def unknown_queues(queues: Iterable[str]) -> list[str]:
    """Return the names that are no queues of roles or of the system: nothing is ever sent to them."""
    return sorted(name for name in queues if not name.startswith(PREFIX) and name not in SYSTEM_QUEUES)


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
