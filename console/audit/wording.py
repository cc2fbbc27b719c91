"""What an entry of the audit trail says in words, and the page of what it is about."""

from __future__ import annotations

from uuid import UUID

from django.urls import reverse

_DONE = {"POST": "created", "PUT": "changed", "PATCH": "changed", "DELETE": "removed"}
#: Kinds of objects that have a page here, by the name of its address.
_PAGES = {
    "activities": "activity",
    "pipeline-runs": "run",
    "schedules": "schedule",
    "queues": "queue",
    "agents": "agent",
    "agent-configs": "agent",
}
_BY_ROLE = ("queue", "agent")


def in_words(operation: str) -> str:
    """An operation of the API as a verb: `POST /queues/{role}/pause/` is `pause`, `POST /activities/` is `created`. Others speak for
    themselves.
    """
    method, _, path = operation.partition(" ")
    if method not in _DONE:
        return operation.replace(".", " ").replace("_", " ")
    parts = [part for part in path.split("/") if part]
    if len(parts) > 1 and not parts[-1].startswith("{"):
        return parts[-1].replace("-", " ").replace("_", " ")
    return _DONE[method]


def address_of(kind: str, object_id: str) -> str:
    """Where the object is shown, without its tenant; empty for what has no page."""
    name = _PAGES.get(kind, "")
    if not name or not object_id:
        return ""
    if name in _BY_ROLE:
        return reverse(f"console:{name}", args=[object_id]) if _is_slug(object_id) else ""
    try:
        return reverse(f"console:{name}", args=[UUID(object_id)])
    except ValueError:
        return ""


def _is_slug(text: str) -> bool:
    return text.replace("-", "").replace("_", "").isalnum() and text.isascii()
