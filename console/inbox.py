"""The inbox: everything that people of a tenant are asked for, most urgent first, narrowed by kind, human role and words.

A view of it is an address, so it can be kept and shared. Looking changes nothing, and costs the same number of queries however much
there is to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import Case, Count, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Now
from django.http import Http404, QueryDict

from activities.decision_rules import DecisionRules
from activities.models import Activity, ActivityEvent
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import Status
from console.deeds import DECIDED, why_not_decide
from console.durations import in_words
from console.wording import KINDS, NAMED_BY_LINK, band, named
from pipelines.models import PipelineRun
from tenants.context import tenant_scope
from tenants.principals import Principal

PAGE = 50
MINE = "mine"
LONGEST_SEARCH = 200
MOST_PAGES = 1_000

_SHOWN = (
    "id", "tenant_id", "name", "status", "assignee_type", "link_kind", "is_approval_gate", "human_role", "priority", "created_at",
    "due_at", "version", "decision_rules", "parent_id", "parent__agent_role", "pipeline_run_id",
)  # fmt: skip
_KIND = Case(
    When(link_kind__in=NAMED_BY_LINK, then=F("link_kind")),
    When(is_approval_gate=True, then=Value("gate")),
    default=Value("task"),
    output_field=models.CharField(),
)


@dataclass(frozen=True, slots=True)
class View:
    """Which part of the inbox is looked at."""

    tenant: str
    kind: str = ""
    role: str = ""
    search: str = ""
    page: int = 1

    @classmethod
    def read(cls, tenant: str, query: Mapping[str, Any]) -> View:
        """From an address. Raises `Http404` for a kind or a page that cannot be: a view that shows too much would mislead."""
        kind, page = str(query.get("kind", "")), str(query.get("page", "") or 1)
        if (kind and kind not in KINDS) or not page.isdecimal() or not 0 < int(page[:9]) <= MOST_PAGES:
            raise Http404
        words = {name: str(query.get(name, "")).replace("\x00", "").strip() for name in ("role", "search")}
        return cls(tenant, kind, words["role"][:63], words["search"][:LONGEST_SEARCH], int(page))

    @property
    def address(self) -> str:
        """The query string of this view."""
        given = QueryDict(mutable=True)
        for name in ("tenant", "kind", "role", "search"):
            if value := getattr(self, name):
                given[name] = value
        if self.page > 1:
            given["page"] = str(self.page)
        return given.urlencode()

    def of_kind(self, kind: str) -> View:
        return replace(self, kind=kind, page=1)


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
        now, due_at = datetime.now(UTC), item.due_at
        return cls(
            since=item.created_at,
            waited=in_words((now - item.created_at).total_seconds()),
            due_at=due_at,
            due=in_words(abs((due_at - now).total_seconds())) if due_at else "",
            overdue=due_at is not None and due_at < now,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One item of the list."""

    id: UUID
    version: int
    kind: str
    name: str
    asked_by: str
    human_role: str
    priority: str
    timing: Timing
    under_way: str
    together: bool  # may be approved together with others

    @property
    def kind_in_words(self) -> str:
        return KINDS[self.kind][0]


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

    @property
    def is_narrowed(self) -> bool:
        return bool(self.view.kind or self.view.role or self.view.search)

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
        counts = _counts(_searched(principal, view))
        rows = _narrowed(_searched(principal, view), principal, view).annotate(asked_by=_asking_actor())
        start = (view.page - 1) * PAGE
        page = list(_ordered(rows).select_related("parent").only(*_SHOWN)[start : start + PAGE + 1])
        pipelines = _pipelines(principal.tenant_id, page)
    mine = _of_role(principal, view.role)
    kinds = Counter(dict.fromkeys(KINDS, 0))
    for (kind, role), count in counts.items():
        kinds[kind] += count if mine is None or role in mine else 0
    return Inbox(
        view=view,
        rows=[_row(item, principal, pipelines) for item in page[:PAGE]],
        tabs=_tabs(view, kinds),
        roles=sorted({role for _, role in counts}),
        total=kinds[view.kind] if view.kind else kinds.total(),
        has_more=len(page) > PAGE,
    )


def _searched(principal: Principal, view: View) -> QuerySet[Any]:
    rows: QuerySet[Any] = Activity.objects.for_tenant(principal.tenant_id).filter(OPEN_FOR_PEOPLE)
    for word in view.search.split():
        rows = rows.filter(Q(name__icontains=word) | Q(description__icontains=word))
    return rows.annotate(kind=_KIND)


def _counts(rows: QuerySet[Any]) -> dict[tuple[str, str], int]:
    """How many there are by kind and human role: what every filter of the page would show."""
    counted = rows.order_by().values("kind", "human_role").annotate(count=Count("pk"))
    return {(row["kind"], row["human_role"]): row["count"] for row in counted}


def _narrowed(rows: QuerySet[Any], principal: Principal, view: View) -> QuerySet[Any]:
    roles = _of_role(principal, view.role)
    rows = rows if roles is None else rows.filter(human_role__in=roles)
    return rows.filter(kind=view.kind) if view.kind else rows


def _of_role(principal: Principal, role: str) -> tuple[str, ...] | None:
    """The human roles that are looked for; None for all. Who has no roles of their own is asked for everything."""
    if role == MINE:
        return principal.human_roles or None
    return (role,) if role else None


def _ordered(rows: QuerySet[Any]) -> QuerySet[Any]:
    """What is overdue first, then by priority, then by age."""
    overdue = Case(
        When(due_at__lt=Now(), then=Value(0)), default=Value(1), output_field=models.IntegerField()
    )
    return rows.order_by(overdue, "priority", "created_at", "pk")


def _asking_actor() -> Subquery:
    first = ActivityEvent.objects.filter(tenant_id=OuterRef("tenant_id"), activity_id=OuterRef("pk"), seq=1)
    return Subquery(first.values("actor")[:1])


def _pipelines(tenant_id: UUID, page: Sequence[Any]) -> dict[UUID, str]:
    """The names of the pipelines whose runs these items belong to."""
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(
        pk__in={item.pipeline_run_id for item in page} - {None}
    )
    return dict(runs.values_list("pk", "version__pipeline__name"))


def _tabs(view: View, kinds: Mapping[str, int]) -> list[Tab]:
    tabs = [Tab("All", sum(kinds.values()), view.of_kind(""), not view.kind)]
    shown = [kind for kind in KINDS if kinds[kind] or kind == view.kind]
    return tabs + [Tab(KINDS[kind][1], kinds[kind], view.of_kind(kind), kind == view.kind) for kind in shown]


def _row(item: Any, principal: Principal, pipelines: Mapping[UUID, str]) -> Row:
    rules = DecisionRules.read(item.decision_rules)
    return Row(
        id=item.pk,
        version=item.version,
        kind=item.kind,
        name=item.name,
        asked_by=who_asks(item, item.asked_by, pipelines.get(item.pipeline_run_id)),
        human_role=item.human_role or "",
        priority=band(item.priority),
        timing=Timing.of(item),
        under_way=_under_way(item, rules),
        together=_together(item, principal, rules),
    )


def who_asks(item: Any, actor: str | None, pipeline: str | None) -> str:
    """The agent whose work it is about, or the pipeline, or whoever submitted it."""
    if item.parent is not None and item.parent.agent_role:
        return str(item.parent.agent_role)
    return f"pipeline {pipeline}" if pipeline else named(actor)


def _under_way(item: Any, rules: DecisionRules) -> str:
    return "" if item.status != Status.IN_PROGRESS else "being voted on" if rules.is_voted_on else "taken up"


def _together(item: Any, principal: Principal, rules: DecisionRules) -> bool:
    """Whether a yes needs nothing but the word: no option to choose, no note, and it is this person's to say."""
    return item.kind in DECIDED and not rules.options and why_not_decide(principal, item, rules) == ""
