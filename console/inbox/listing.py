"""Lists the inbox: everything that waits for people of a tenant, most urgent first, filtered by kind, human role and text.

A view is an address, so it can be bookmarked and shared. Listing is read-only and takes a constant number of queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from activities import selectors
from activities.decision_rules import DecisionRules
from activities.models import Activity, ActivityEvent
from activities.selectors import PersonClaim
from activities.states import Status
from console.inbox.actions import DECIDED, OPEN, why_not_decide
from console.inbox.query import (
    EVERYBODY,
    MINE,
    SHOWN,
    Audience,
    View,
    asking_actor,
    counts_of,
    counts_of_alike,
    first_of_alike,
    narrow,
    order,
    runs_of,
    search_open,
)
from console.inbox.undo import PendingAnswer, list_held
from console.labels import KINDS, band, in_words, name_actor, outcome_label
from tenants import clock
from tenants.context import tenant_scope
from tenants.principals import Principal

from .snooze import snooze_times

PAGE = 50


@dataclass(frozen=True, slots=True)
class Tab:
    """A filter of the list by kind."""

    words: str
    count: int
    view: View
    chosen: bool


@dataclass(frozen=True, slots=True)
class Inbox:
    """The list as the page displays it."""

    view: View
    rows: Sequence[Row]
    tabs: Sequence[Tab]
    roles: Sequence[str]
    total: int
    has_more: bool
    held: Sequence[PendingAnswer]  # the person's answers that have not taken effect yet
    hidden: int  # items of all kinds that wait for others

    def is_answered(self, item_id: UUID) -> bool:
        """Whether the person has answered the item and the answer has not taken effect yet."""
        return any(one.item_id == item_id and not one.refusal for one in self.held)

    @property
    def is_narrowed(self) -> bool:
        return bool(self.view.kind or self.view.role or self.view.search or self.view.aside or self.hidden)

    @property
    def is_for_me(self) -> bool:
        """Whether it lists the person's own items, which is the default."""
        return self.view.role in ("", MINE)

    @property
    def of_everybody(self) -> str:
        """The address of the same view for everybody."""
        return replace(self.view, role=EVERYBODY, page=1).address

    @property
    def before(self) -> str:
        return replace(self.view, page=self.view.page - 1).address if self.view.page > 1 else ""

    @property
    def after(self) -> str:
        return replace(self.view, page=self.view.page + 1).address if self.has_more else ""

    @property
    def together(self) -> bool:
        return any(row.together for row in self.rows)

    def next_after(self, item_id: UUID) -> UUID | None:
        """Return the next item of the list; for the last item, the one before it."""
        ids = [row.id for row in self.rows]
        others = [other for other in ids if other != item_id]
        if item_id not in ids or not others:
            return others[0] if others else None
        return others[min(ids.index(item_id), len(others) - 1)]


def inbox(principal: Principal, view: View) -> Inbox:
    """Return the list for one person."""
    with tenant_scope(principal.tenant_id):
        counts = counts_of(search_open(principal, view))
        every = narrow(search_open(principal, view), principal, view)
        rows = first_of_alike(every).annotate(asked_by=asking_actor(), aside_until=snooze_times(principal))
        start = (view.page - 1) * PAGE
        page = list(order(rows).select_related("parent").only(*SHOWN)[start : start + PAGE + 1])
        alike = counts_of_alike(every, page)
        runs = runs_of(principal.tenant_id, page)
        claims = selectors.claims_of(principal.tenant_id, page)
        held = list_held(principal)
    audience, hidden = Audience.by(principal, view.role), 0
    kinds, aside = Counter(dict.fromkeys(KINDS, 0)), Counter(dict.fromkeys(KINDS, 0))
    for (kind, role, is_aside), count in counts.items():
        if audience.holds(kind, role):
            (aside if is_aside else kinds)[kind] += count
        elif not is_aside:
            hidden += count
    listed = aside if view.aside else kinds
    return Inbox(
        view=view,
        rows=[row_of(item, principal, runs, alike, claims) for item in page[:PAGE]],
        tabs=_tabs(view, kinds, aside.total()),
        roles=sorted({role for _, role, _ in counts}),
        total=listed[view.kind] if view.kind else listed.total(),
        has_more=len(page) > PAGE,
        held=held,
        hidden=0 if view.aside or view.kind else hidden,
    )


def _tabs(view: View, kinds: Mapping[str, int], aside: int) -> list[Tab]:
    chosen = None if view.aside else view.kind
    tabs = [Tab("All", sum(kinds.values()), view.of_kind(""), chosen == "")]
    tabs += [
        Tab(KINDS[kind][1], kinds[kind], view.of_kind(kind), kind == chosen)
        for kind in KINDS
        if kinds[kind] or kind == chosen
    ]
    return tabs + ([Tab("Snoozed", aside, view.of_aside(), view.aside)] if aside or view.aside else [])


@dataclass(frozen=True, slots=True)
class Row:
    """One item of the list."""

    id: UUID
    version: int
    kind: str
    name: str
    about: str  # the subject of its pipeline run
    round: int  # of the work that it is about
    alike: int  # how many similar failures it represents
    asked_by: str
    human_role: str
    priority: str
    timing: Timing
    under_way: str
    together: bool  # may be approved together with others
    aside_until: datetime | None  # until when this person has snoozed it

    @property
    def kind_in_words(self) -> str:
        return KINDS[self.kind][0]


def row_of(
    item: Any,
    principal: Principal,
    runs: Mapping[UUID, tuple[str, str]],
    alike: Mapping[tuple[str, str], int],
    claims: Mapping[UUID, PersonClaim],
) -> Row:
    rules = DecisionRules.read(item.decision_rules)
    pipeline, about = runs.get(item.pipeline_run_id, (None, ""))
    return Row(
        id=item.pk,
        version=item.version,
        kind=item.kind,
        name=item.name,
        about=about,
        round=item.parent.round if item.parent is not None else 1,
        alike=alike.get((item.alike, item.human_role), 1),
        asked_by=who_asks(item, item.asked_by, pipeline),
        human_role=item.human_role or "",
        priority=band(item.priority),
        timing=Timing.of(item),
        under_way=_under_way(item, rules, claims.get(item.pk)),
        together=_together(item, principal, rules),
        aside_until=item.aside_until,
    )


def _under_way(item: Any, rules: DecisionRules, claim: PersonClaim | None) -> str:
    if claim is not None:
        return f"claimed by {name_actor(claim.actor)}"
    return "voting" if item.status == Status.IN_PROGRESS and rules.is_voted_on else ""


def who_asks(item: Any, actor: str | None, pipeline: str | None) -> str:
    """Return the agent whose work it is about, else the pipeline, else the actor who submitted it."""
    if item.parent is not None and item.parent.agent_role:
        return str(item.parent.agent_role)
    return f"pipeline {pipeline}" if pipeline else name_actor(actor)


def _together(item: Any, principal: Principal, rules: DecisionRules) -> bool:
    """Return whether this person may approve it without a note or a choice of options."""
    return item.kind in DECIDED and not rules.options and why_not_decide(principal, item, rules) == ""


# Items that were closed while the page was open.


MOST = 50  # the items of one page


@dataclass(frozen=True, slots=True)
class ClosedItem:
    """A closed item. `who` is empty if no actor is recorded."""

    id: UUID
    name: str
    outcome: str
    who: str


def list_closed(principal: Principal, ids: Sequence[UUID]) -> list[ClosedItem]:
    """Return the closed items among `ids`, in that order. Takes two queries."""
    item_ids, tenant_id = list(dict.fromkeys(ids))[:MOST], principal.tenant_id
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=item_ids, assignee_type="human")
        over = {row.pk: row for row in rows.exclude(status__in=OPEN).only("name", "status")}
        events = ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id__in=over)
        last = events.order_by("activity_id", "-at", "-seq").distinct("activity_id")
        actors = dict(last.values_list("activity_id", "actor"))
    return [
        ClosedItem(
            pk,
            over[pk].name,
            outcome_label(over[pk].status),
            name_actor(actors[pk]) if actors.get(pk) else "",
        )
        for pk in item_ids
        if pk in over
    ]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long an item has waited, and when it is due."""

    since: datetime
    waited: str
    due_at: datetime | None
    due: str
    overdue: bool

    @classmethod
    def of(cls, item: Any) -> Timing:
        now, due_at = clock.now(), item.due_at
        return cls(
            since=item.created_at,
            waited=in_words((now - item.created_at).total_seconds()),
            due_at=due_at,
            due=in_words(abs((due_at - now).total_seconds())) if due_at else "",
            overdue=due_at is not None and due_at < now,
        )
