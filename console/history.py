"""What happened last to an item and to what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from activities.models import ActivityEvent
from activities.states import LinkKind
from console.wording import did, named

HISTORY = 12
LONGEST_WORDS = 300  # of one entry of the history
_INNER = ("claim", "start", "release")  # the engine's own moves, which tell a person nothing
_SAID = ("notes", "note", "reason", "message", "question")  # where an event keeps what was said


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of the history. `about` names the work, when it did not happen to the item itself."""

    at: datetime
    verb: str
    who: str
    did: str
    words: str
    about: str


def history_of(row: Any, subject: Any | None) -> list[Moment]:
    """The last things that happened to the item and to what it is about, oldest first."""
    names = {row.pk: ""} | ({} if subject is None else {subject.pk: subject.name})
    hidden = Q(verb__in=_INNER)
    if (
        row.link_kind == LinkKind.GATE
    ):  # Its answer moves the gate and the work behind it; once is enough to tell.
        hidden |= Q(activity_id=row.parent_id, verb__in=("approve", "reject"))
    events = ActivityEvent.objects.for_tenant(row.tenant_id).filter(activity_id__in=names).exclude(hidden)
    newest = list(events.order_by("-at", "-seq", "-pk")[:HISTORY])
    return [_moment(event, names[event.activity_id]) for event in reversed(newest)]


def _moment(event: Any, about: str) -> Moment:
    detail: Mapping[str, Any] = event.detail or {}
    words = next((detail[name] for name in _SAID if isinstance(detail.get(name), str) and detail[name]), "")
    what = "submitted" if event.verb == "submit" and about else did(event.verb)
    if detail.get("edited"):
        what = f"{what} as edited"
    return Moment(event.at, event.verb, named(event.actor), what, words[:LONGEST_WORDS], about)
