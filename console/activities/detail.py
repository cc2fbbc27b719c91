"""One activity as its page shows it: what its time was spent with, its attempts and wakes, what its agent asked for, what hangs on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.http import Http404
from django.utils.safestring import SafeString

from activities import selectors, wait_reasons
from activities.api.serializers import allowed_actions
from activities.models import Activity
from activities.selectors import Moment
from activities.states import LinkKind
from console.activities import chart
from console.activities.segments import Segment, segments
from console.labels import band, cost_in, did, named
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal

MOST_CHILDREN = 50
MOST_MARKS = 200
OPERATIONS = ("cancel", "retry", "reassign")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of its agent."""

    moment: Moment

    @property
    def lasted(self) -> Any:
        ended = self.moment.facts["ended_at"]
        return (ended or clock.now()) - self.moment.at

    @property
    def cost(self) -> Decimal:
        return cost_in(self.moment.facts["usage"])

    @property
    def tokens(self) -> int:
        usage = self.moment.facts["usage"] or {}
        counts = (usage.get("input_tokens"), usage.get("output_tokens"))
        return sum(count for count in counts if isinstance(count, int))

    @property
    def error(self) -> str:
        return str((self.moment.facts["error"] or {}).get("message", ""))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history."""

    at: datetime
    words: str
    more: str


@dataclass(frozen=True, slots=True)
class Detail:
    """What the page shows."""

    activity: Activity
    reason: wait_reasons.Waiting
    moments: Sequence[Moment]
    children: Sequence[Activity]
    deeds: Sequence[str]

    @property
    def is_for_people(self) -> bool:
        return self.activity.assignee_type == "human"

    @property
    def role(self) -> str:
        return self.activity.agent_role or self.activity.human_role or ""

    @property
    def band(self) -> str:
        return band(self.activity.priority)

    @property
    def asked(self) -> Activity | None:
        """What people have to answer before it goes on: itself, or the newest open question that it waits for."""
        if self.is_for_people:
            return self.activity if self.activity.status in ("created", "in_progress") else None
        open_ones = (one for one in self.children if one.assignee_type == "human" and _is_open(one))
        return next(open_ones, None)

    @property
    def segments(self) -> list[Segment]:
        reason_now = self.reason.detail if self.reason.code else ""
        return segments(self.moments, by_person=self.is_for_people, now=clock.now(), reason_now=reason_now)

    @property
    def picture(self) -> SafeString:
        marked = [
            (moment.at, _marked(moment)) for moment in self.moments if moment.kind in ("wake", "tool_call")
        ]
        return chart.drawn(self.segments, marked[:MOST_MARKS])

    @property
    def attempts(self) -> list[Attempt]:
        return [Attempt(moment) for moment in reversed(self.moments) if moment.kind == "run"]

    @property
    def wakes(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.kind == "wake"]

    @property
    def tool_calls(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.kind == "tool_call"]

    @property
    def history(self) -> list[Entry]:
        return [
            _entry(moment) for moment in self.moments if moment.kind in ("transition", "vote", "deadline")
        ]


def detail(who: Principal, activity_id: UUID) -> Detail:
    """Raises `Http404`. Asks PostgreSQL alone."""
    with tenant_scope(who.tenant_id):
        rows = Activity.objects.for_tenant(who.tenant_id)
        activity = rows.filter(pk=activity_id).select_related("parent").first()
        if activity is None:
            raise Http404
        children = rows.filter(parent_id=activity_id).order_by("-created_at", "-pk")
        return Detail(
            activity=activity,
            reason=wait_reasons.briefly(who.tenant_id, [activity])[activity_id],
            moments=selectors.timeline(who.tenant_id, activity_id),
            children=list(children.defer("input", "params", "metadata")[:MOST_CHILDREN]),
            deeds=_deeds(who, activity),
        )


def _deeds(who: Principal, activity: Activity) -> list[str]:
    if not who.role.includes(Role.OPERATOR):
        return []
    return [name for name in allowed_actions(activity) if name in OPERATIONS]


def _is_open(child: Activity) -> bool:
    answered = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.RESOLUTION, LinkKind.SUBTASK, LinkKind.ESCALATION)
    return child.status in ("created", "in_progress") and child.link_kind in answered


def _marked(moment: Moment) -> str:
    if moment.kind == "tool_call":
        return f"Its agent called {moment.facts['tool']}"
    return f"Woken: {moment.facts['reason'].replace('_', ' ')}"


def _entry(moment: Moment) -> Entry:
    facts = moment.facts
    if moment.kind == "vote":
        return Entry(moment.at, f"{named(facts['actor'])} voted: {facts['decision']}", facts["notes"] or "")
    if moment.kind == "deadline":
        return Entry(moment.at, f"Deadline: {facts['deadline'].replace('_', ' ')}", facts["human_role"] or "")
    said = facts["detail"]
    words = next(
        (said[name] for name in ("reason", "message", "notes", "note") if isinstance(said.get(name), str)), ""
    )
    what = "submitted it" if facts["verb"] == "submit" else did(facts["verb"])
    return Entry(moment.at, f"{named(facts['actor'])} {what}", words)
