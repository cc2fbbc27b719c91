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

from django.db import models
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When, Window
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Now, RowNumber
from django.http import Http404, QueryDict

from activities import selectors
from activities.decision_rules import GENERAL_ROLE, DecisionRules
from activities.models import Activity, ActivityEvent, HeldAnswer, Vote
from activities.selectors import KIND_OF_ITEM, OPEN_FOR_PEOPLE, PersonClaim
from activities.states import LinkKind, Status
from console.inbox.actions import DECIDED, OPEN, why_not_decide
from console.inbox.snooze import is_snoozed, snooze_times
from console.inbox.undo import PendingAnswer, list_held
from console.labels import KINDS, band, in_words, name_actor, outcome_label
from console.page import number_in, text_in
from pipelines.models import PipelineRun
from pipelines.subjects import subject_of
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal

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
        found = search_open(principal, view)
        counts = counts_of(found)
        audience, hidden = Audience.by(principal, view.role), 0
        kinds, aside = Counter(dict.fromkeys(KINDS, 0)), Counter(dict.fromkeys(KINDS, 0))
        for (kind, role, is_aside), count in counts.items():
            if audience.holds(kind, role):
                (aside if is_aside else kinds)[kind] += count
            elif not is_aside:
                hidden += count
        listed = aside if view.aside else kinds
        total = listed[view.kind] if view.kind else listed.total()
        rows, has_more = (
            _rows_of(narrow(found, principal, view), listed, principal, view) if total else ([], False)
        )
        held = list_held(principal)
    return Inbox(
        view=view,
        rows=rows,
        tabs=_tabs(view, kinds, aside.total()),
        roles=sorted({role for _, role, _ in counts}),
        total=total,
        has_more=has_more,
        held=held,
        hidden=0 if view.aside or view.kind else hidden,
    )


def is_listed(principal: Principal, view: View, item: str) -> bool:
    """Return whether the item with this id is still in the list, on any page."""
    try:
        item_id = UUID(item)
    except ValueError:
        return False
    with tenant_scope(principal.tenant_id):
        rows = narrow(search_open(principal, view), principal, view)
        return rows.filter(pk=item_id).exists()


def _rows_of(
    every: QuerySet[Any], counts: Mapping[str, int], principal: Principal, view: View
) -> tuple[list[Row], bool]:
    """Return one page of the items, and whether there are more. `counts` are their numbers by kind."""
    # Only failures can be alike, and the search for those is half of the work.
    first = first_of_alike(every, principal.tenant_id) if counts[LinkKind.ESCALATION] else every
    shown = first.annotate(asked_by=asking_actor(), aside_until=snooze_times(principal))
    start = (view.page - 1) * PAGE
    page = list(order(shown).select_related("parent").only(*SHOWN)[start : start + PAGE + 1])
    alike = counts_of_alike(every, page)
    runs = runs_of(principal.tenant_id, page)
    claims = selectors.claims_of(principal.tenant_id, page)
    return [row_of(item, principal, runs, alike, claims) for item in page[:PAGE]], len(page) > PAGE


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


# The filters of the list, and its queries.


LONGEST_SEARCH = 200
MOST_PAGES = 1_000


@dataclass(frozen=True, slots=True)
class View:
    tenant: str
    kind: str = ""
    role: str = ""
    search: str = ""
    page: int = 1
    aside: bool = False  # only items that the person has snoozed, instead of all others

    @classmethod
    def read(cls, tenant: str, query: Mapping[str, Any]) -> View:
        """Parse a query string. Raises `Http404` for an invalid kind or page, because ignoring a filter would mislead."""
        kind, page = str(query.get("kind", "")), number_in(str(query.get("page", "") or 1))
        aside = str(query.get("aside", ""))
        if aside not in ("", "yes"):
            raise Http404
        if (kind and kind not in KINDS) or page is None or not 0 < page <= MOST_PAGES:
            raise Http404
        role, search = text_in(query, "role", 63), text_in(query, "search", LONGEST_SEARCH)
        return cls(tenant, kind, role, search, page, aside == "yes")

    @property
    def address(self) -> str:
        query = QueryDict(mutable=True)
        for name in ("tenant", "kind", "role", "search"):
            if value := getattr(self, name):
                query[name] = value
        if self.aside:
            query["aside"] = "yes"
        if self.page > 1:
            query["page"] = str(self.page)
        return query.urlencode()

    def of_kind(self, kind: str) -> View:
        return replace(self, kind=kind, page=1, aside=False)

    def of_aside(self) -> View:
        return replace(self, kind="", page=1, aside=True)


#: Values of the role filter that are not human roles: the person's own items (the default), and everybody's.
MINE, EVERYBODY = "mine", "everybody"
SHOWN = (
    "id", "tenant_id", "name", "status", "assignee_type", "link_kind", "is_approval_gate", "human_role", "priority", "created_at",
    "due_at", "version", "decision_rules", "parent_id", "parent__agent_role",
    "parent__round", "pipeline_run_id",
)  # fmt: skip
#: The list has one item for all escalations of similar failures; every other item has its own.
ALIKE = Case(
    When(
        link_kind=LinkKind.ESCALATION,
        metadata__has_key="fingerprint",
        then=KeyTextTransform("fingerprint", "metadata"),
    ),
    default=Cast("pk", models.CharField()),
    output_field=models.CharField(),
)


def search_open(principal: Principal, view: View) -> QuerySet[Any]:
    """Return the open items, except those that this person has already answered or voted on."""
    answered = HeldAnswer.objects.filter(
        tenant_id=principal.tenant_id, user_id=principal.user_id or 0, activity_id=OuterRef("pk"), refusal=""
    )
    voted = Vote.objects.filter(
        tenant_id=principal.tenant_id, voter=principal.identity, activity_id=OuterRef("pk")
    )
    rows: QuerySet[Any] = Activity.objects.for_tenant(principal.tenant_id).filter(
        OPEN_FOR_PEOPLE, ~Exists(answered), ~Exists(voted)
    )
    for word in view.search.split():
        rows = rows.filter(Q(name__icontains=word) | Q(description__icontains=word))
    return rows.annotate(kind=KIND_OF_ITEM, aside=is_snoozed(principal), alike=ALIKE)


def counts_of(rows: QuerySet[Any]) -> dict[tuple[str, str, bool], int]:
    """Count the items by kind, human role and whether they are snoozed, as every filter of the page needs it."""
    counted = (
        rows.order_by().values("kind", "human_role", "aside").annotate(count=Count("alike", distinct=True))
    )
    return {(row["kind"], row["human_role"], row["aside"]): row["count"] for row in counted}


def narrow(rows: QuerySet[Any], principal: Principal, view: View) -> QuerySet[Any]:
    rows = rows.filter(Audience.by(principal, view.role).condition(), aside=view.aside)
    return rows.filter(kind=view.kind) if view.kind else rows


def first_of_alike(rows: QuerySet[Any], tenant_id: UUID) -> QuerySet[Any]:
    """Return the items, of similar failures only the oldest escalation, which represents the others."""
    place = Window(
        RowNumber(), partition_by=[F("alike"), F("human_role")], order_by=[F("created_at"), F("pk")]
    )
    first = rows.order_by().annotate(place=place).filter(place=1).values("pk")
    return (
        Activity.objects.for_tenant(tenant_id).filter(pk__in=first).annotate(kind=KIND_OF_ITEM, alike=ALIKE)
    )


def counts_of_alike(rows: QuerySet[Any], page: Sequence[Any]) -> dict[tuple[str, str], int]:
    """Count how many of `rows` each escalation on this page represents, by fingerprint and human role."""
    fingerprints = [item.alike for item in page if item.link_kind == LinkKind.ESCALATION]
    if not fingerprints:
        return {}
    counted = (
        rows.filter(alike__in=fingerprints)
        .order_by()
        .values("alike", "human_role")
        .annotate(count=Count("pk"))
    )
    return {(row["alike"], row["human_role"]): row["count"] for row in counted}


@dataclass(frozen=True, slots=True)
class Audience:
    """Whose items are listed. `roles` None means every human role. `failures` True adds all failures, False excludes them, and None
    treats them like other items."""

    roles: tuple[str, ...] | None = None
    failures: bool | None = None

    @classmethod
    def by(cls, principal: Principal, role: str) -> Audience:
        """Return the audience of a view. The default is what the person may decide: items of their human roles or of reviewers in
        general. Failures are for operators, because others can do nothing about them. A person without human roles, and a viewer, sees
        everything.
        """
        if role not in ("", MINE):
            return cls() if role == EVERYBODY else cls((role,))
        if not principal.role.includes(Role.REVIEWER):
            return cls()
        own = (*principal.human_roles, GENERAL_ROLE) if principal.human_roles else None
        return cls(own, principal.role.includes(Role.OPERATOR))

    def condition(self) -> Q:
        condition = Q() if self.roles is None else Q(human_role__in=self.roles)
        failure = Q(kind=LinkKind.ESCALATION)
        if self.failures and self.roles is not None:
            return condition | failure
        return condition & ~failure if self.failures is False else condition

    def holds(self, kind: str, human_role: str) -> bool:
        """Apply the condition to one item."""
        if self.failures is not None and kind == LinkKind.ESCALATION:
            return self.failures
        return self.roles is None or human_role in self.roles


def order(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Order overdue items first, then by priority, then by age."""
    overdue = Case(
        When(due_at__lt=Now(), then=Value(0)), default=Value(1), output_field=models.IntegerField()
    )
    return rows.order_by(overdue, "priority", "created_at", "pk")


def asking_actor() -> Subquery:
    first = ActivityEvent.objects.filter(tenant_id=OuterRef("tenant_id"), activity_id=OuterRef("pk"), seq=1)
    return Subquery(first.values("actor")[:1])


def runs_of(tenant_id: UUID, page: Sequence[Any]) -> dict[UUID, tuple[str, str]]:
    """Return the pipeline's name and the run's subject by the run's id, for the items of a page."""
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(
        pk__in={item.pipeline_run_id for item in page} - {None}
    )
    rows = runs.values_list("pk", "version__pipeline__name", "name", "params")
    return {pk: (pipeline, subject_of(name, params)) for pk, pipeline, name, params in rows}
