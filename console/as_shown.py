"""An answer binds to what the page showed: the item is locked, then it must be as it was."""

from __future__ import annotations

from datetime import UTC
from uuid import UUID

from django.http import Http404

from activities.api import decisions as api
from activities.decision_rules import DecisionRules
from activities.models import Activity, ActivityEvent
from activities.states import LinkKind
from console.facts import OPEN
from console.refusals import Refused
from console.wording import named, outcome


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
