"""The inbox: everything that people of a tenant are asked for, most urgent first, narrowed by kind, human role and words.

A view of it is an address, so it can be kept and shared. Looking changes nothing, and costs the same number of queries however much
there is to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from activities.decision_rules import DecisionRules
from activities.models import Activity, ActivityEvent
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
from console.labels import KINDS, band, in_words, name_actor, outcome
from tenants import clock
from tenants.context import tenant_scope
from tenants.principals import Principal

from .snooze import snooze_times

PAGE = 50


@dataclass(frozen=True, slots=True)
class Tab:
    """A kind that the list can be narrowed to."""

    words: str
    count: int
    view: View
    chosen: bool


@dataclass(frozen=True, slots=True)
class Inbox:
    """What the list shows."""

    view: View
    rows: Sequence[Row]
    tabs: Sequence[Tab]
    roles: Sequence[str]
    total: int
    has_more: bool
    held: Sequence[PendingAnswer]  # what the person has answered a moment ago
    hidden: int  # items of all kinds that are asked of others

    def is_answered(self, item_id: UUID) -> bool:
        """Whether the person's answer to it is on its way."""
        return any(one.item_id == item_id and not one.refusal for one in self.held)

    @property
    def is_narrowed(self) -> bool:
        return bool(self.view.kind or self.view.role or self.view.search or self.view.aside or self.hidden)

    @property
    def is_for_me(self) -> bool:
        """Whether it lists what is the person's to decide, which is how the inbox begins."""
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
        """What follows an item in the list, or comes before the last one."""
        ids = [row.id for row in self.rows]
        others = [other for other in ids if other != item_id]
        if item_id not in ids or not others:
            return others[0] if others else None
        return others[min(ids.index(item_id), len(others) - 1)]


def inbox(principal: Principal, view: View) -> Inbox:
    """The list, for one person."""
    with tenant_scope(principal.tenant_id):
        counts = counts_of(search_open(principal, view))
        every = narrow(search_open(principal, view), principal, view)
        rows = first_of_alike(every).annotate(asked_by=asking_actor(), aside_until=snooze_times(principal))
        start = (view.page - 1) * PAGE
        page = list(order(rows).select_related("parent").only(*SHOWN)[start : start + PAGE + 1])
        alike = counts_of_alike(every, page)
        runs = runs_of(principal.tenant_id, page)
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
        rows=[row_of(item, principal, runs, alike) for item in page[:PAGE]],
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
    shown = [kind for kind in KINDS if kinds[kind] or kind == chosen]
    tabs += [Tab(KINDS[kind][1], kinds[kind], view.of_kind(kind), kind == chosen) for kind in shown]
    return tabs + ([Tab("Put aside", aside, view.of_aside(), view.aside)] if aside or view.aside else [])


# One item of the inbox as a row of its list.


@dataclass(frozen=True, slots=True)
class Row:
    """One item of the list."""

    id: UUID
    version: int
    kind: str
    name: str
    about: str  # what the run that it belongs to is about
    round: int  # of the work that it is about
    alike: int  # for so many questions about failures that look alike it stands
    asked_by: str
    human_role: str
    priority: str
    timing: Timing
    under_way: str
    together: bool  # may be approved together with others
    aside_until: datetime | None  # while this person has put it aside

    @property
    def kind_in_words(self) -> str:
        return KINDS[self.kind][0]


def row_of(
    item: Any,
    principal: Principal,
    runs: Mapping[UUID, tuple[str, str]],
    alike: Mapping[tuple[str, str], int],
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
        under_way=_under_way(item, rules),
        together=_together(item, principal, rules),
        aside_until=item.aside_until,
    )


def who_asks(item: Any, actor: str | None, pipeline: str | None) -> str:
    """The agent whose work it is about, or the pipeline, or anyone who submitted it."""
    if item.parent is not None and item.parent.agent_role:
        return str(item.parent.agent_role)
    return f"pipeline {pipeline}" if pipeline else name_actor(actor)


def _under_way(item: Any, rules: DecisionRules) -> str:
    return "" if item.status != Status.IN_PROGRESS else "being voted on" if rules.is_voted_on else "taken up"


def _together(item: Any, principal: Principal, rules: DecisionRules) -> bool:
    """Whether a yes needs nothing but the word: no option to choose, no note, and it is this person's to say."""
    return item.kind in DECIDED and not rules.options and why_not_decide(principal, item, rules) == ""


# What has become of items of the inbox that are not asked any more: somebody decided, did or withdrew them meanwhile.


MOST = 50  # as many as a page of the inbox shows


@dataclass(frozen=True, slots=True)
class ClosedItem:
    """An item that is over. `who` is empty where nobody is on record."""

    id: UUID
    name: str
    outcome: str
    who: str


def list_closed(principal: Principal, ids: Sequence[UUID]) -> list[ClosedItem]:
    """Those of the items that are over, in the order in which they were asked about. With two queries, however many there are."""
    item_ids, tenant_id = list(dict.fromkeys(ids))[:MOST], principal.tenant_id
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=item_ids, assignee_type="human")
        over = {row.pk: row for row in rows.exclude(status__in=OPEN).only("name", "status")}
        events = ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id__in=over)
        last = events.order_by("activity_id", "-at", "-seq").distinct("activity_id")
        actors = dict(last.values_list("activity_id", "actor"))
    return [
        ClosedItem(
            pk, over[pk].name, outcome(over[pk].status), name_actor(actors[pk]) if actors.get(pk) else ""
        )
        for pk in item_ids
        if pk in over
    ]


# Since when an item of the inbox waits, and by when it is due.


@dataclass(frozen=True, slots=True)
class Timing:
    """Since when an item waits, and by when it is due."""

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
