"""What is known of an item beside its texts: who asks, and facts by their names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import Any
from uuid import UUID

from django.db import OperationalError
from django.http import Http404

from activities import outputs
from activities.api import decisions as api
from activities.decision_rules import DecisionRules
from activities.exceptions import OutputUnavailable
from activities.models import Activity, ActivityEvent, DeadLetter
from activities.outputs import StoredOutput
from activities.states import LinkKind
from console.labels import dollars, named, outcome
from tenants import outages
from tenants.context import tenant_scope

OPEN = ("created", "in_progress")


def asking_actor(row: Any, approval: Any | None) -> str | None:
    if approval is not None:
        return str(approval.requested_by)
    events = ActivityEvent.objects.for_tenant(row.tenant_id).filter(activity_id=row.pk, seq=1)
    actor: str | None = events.values_list("actor", flat=True).first()
    return actor


def letter_of(row: Any) -> Any | None:
    if row.link_kind != LinkKind.ESCALATION or row.parent_id is None:
        return None
    letters = DeadLetter.objects.for_tenant(row.tenant_id).filter(
        activity_id=row.parent_id, escalation_id=row.pk
    )
    return letters.order_by("-pk").first()


def facts_of(row: Any, approval: Any | None, letter: Any | None) -> list[tuple[str, str]]:
    """What is known beside the texts, by its name."""
    metadata = row.metadata or {}
    facts = {
        "Type": approval.type if approval else metadata.get("blocker_type"),
        "Handed over because": metadata.get("reassign_reason"),
        "Error": letter.error.get("code") if letter else None,
        "Workers lost": letter.stalls if letter and letter.stalls else None,
        "Cost until then": dollars(letter.cost_usd) if letter and letter.cost_usd else None,
        "Sent back with": row.reviewer_notes if row.status in OPEN else None,
    }
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]


# An answer binds to what the page showed: the item is locked, then it must be as it was.


def lock(tenant_id: UUID, ids: set[UUID]) -> None:
    """Lock items and everything that an answer may move. An escalation's answer moves the failed work and what that holds."""
    failed = Activity.objects.for_tenant(tenant_id).filter(pk__in=ids, link_kind=LinkKind.ESCALATION)
    api.lock_all(tenant_id, ids | set(failed.exclude(parent_id=None).values_list("parent_id", flat=True)))


def item_as_shown(tenant_id: UUID, item_id: UUID, version: int) -> Activity:
    """The item, if it is still as it was. Raises `Refused` telling what happened, `Http404`."""
    rows = Activity.objects.for_tenant(tenant_id).filter(pk=item_id, assignee_type="human")
    item: Activity | None = rows.select_related("parent").first()
    if item is None:
        raise Http404
    if item.version != version and not _is_voted_on(item):
        raise Refused(f"{_what_happened(item)} Nothing was done.")
    return item


def _is_voted_on(item: Activity) -> bool:
    """Whether each person's word stands for itself, so that another one's changes nothing about it."""
    return item.status in OPEN and DecisionRules.read(item.decision_rules).is_voted_on


def _what_happened(item: Activity) -> str:
    events = ActivityEvent.objects.for_tenant(item.tenant_id).filter(activity_id=item.pk)
    last = events.order_by("-seq").first()
    if last is None:
        return "This has changed since you looked."
    reason = (last.detail or {}).get("reason")
    why = f" ({reason})" if reason else ""
    when = f"{last.at.astimezone(UTC):%-d %b, %H:%M:%S} UTC"
    return f"{outcome(item.status)} by {named(last.actor)} on {when}{why}, after you had loaded this."


# Why an answer was not taken. Nothing is done then.


BUSY = "Many answers met at the same moment, and this one was given up. Nothing was done; try again."


class Refused(Exception):
    """Nothing was done, and why. `status` is the HTTP status of the page that says so, `field` what of the form is that is wrong."""

    def __init__(self, reason: str, *, status: int = 409, field: str = "") -> None:
        super().__init__(reason)
        self.reason, self.status, self.field = reason, status, field


@contextmanager
def refused_when_busy() -> Iterator[None]:
    """The database gives up a transaction that others stand in the way of. Anyone who sent it may simply try again."""
    try:
        yield
    except OperationalError as error:
        if outages.is_contention(error):
            raise Refused(BUSY, status=503) from error
        raise


# Editing a result before it is approved: the text that the page offers for it, and what of the result stays beside an edited text.
#
# The page sends the whole text back, edited or not, with a mark of the one that it showed. So an approval whose text is the same is one
# like any other, and an edited text is never lost to the wrong button.


MOST_CHARACTERS = 200_000
AWAY = "The store of outputs does not answer. Nothing was done; try again in a moment."
LOST = "The result is not there any more. Nothing was done."


@dataclass(frozen=True, slots=True)
class Draft:
    """A text to edit, and the mark by which it is known again."""

    text: str
    mark: str


def with_plain_lines(text: str) -> str:
    """Browsers send line ends as two characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def mark_of(text: str) -> str:
    """The same for texts that differ in nothing but their line ends and the space around them."""
    return hashlib.sha256(with_plain_lines(text).encode()).hexdigest()


def draft_of(output: StoredOutput | None) -> Draft | None:
    """What there is to edit; None for what is no text, or too long."""
    if output is None or not output.content_type.startswith("text/"):
        return None
    text = with_plain_lines(output.content or "")
    return Draft(text, mark_of(text)) if 0 < len(text) <= MOST_CHARACTERS else None


def rest_of(tenant_id: UUID, item_id: UUID) -> dict[str, Any]:
    """What of the result that an item asks about stays beside an edited text. Not inside a transaction. Raises `Refused`."""
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).filter(pk=item_id)
        reference: UUID | None = rows.values_list("input_ref", flat=True).first()
    if reference is None:
        return {}
    try:
        found = outputs.read(tenant_id, reference)
    except OutputUnavailable as error:
        raise Refused(AWAY, status=503) from error
    if found is None:
        raise Refused(LOST)
    return {"data": found.data, "content_type": found.content_type}
