"""Filters, counts and orders the items of the inbox. A view is an address, so it can be bookmarked and shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When, Window
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Now, RowNumber
from django.http import Http404, QueryDict

from activities.decision_rules import GENERAL_ROLE
from activities.models import Activity, ActivityEvent, HeldAnswer
from activities.selectors import KIND_OF_ITEM, OPEN_FOR_PEOPLE
from activities.states import LinkKind
from console.labels import KINDS
from console.page import text_in
from pipelines.models import PipelineRun
from pipelines.subjects import subject_of
from tenants.models import Role
from tenants.principals import Principal

from .snooze import is_snoozed

LONGEST_SEARCH = 200
MOST_PAGES = 1_000


@dataclass(frozen=True, slots=True)
class View:
    """The filters of the inbox."""

    tenant: str
    kind: str = ""
    role: str = ""
    search: str = ""
    page: int = 1
    aside: bool = False  # only items that the person has snoozed, instead of all others

    @classmethod
    def read(cls, tenant: str, query: Mapping[str, Any]) -> View:
        """Parse a query string. Raises `Http404` for an invalid kind or page, because ignoring a filter would mislead."""
        kind, page = str(query.get("kind", "")), str(query.get("page", "") or 1)
        aside = str(query.get("aside", ""))
        if aside not in ("", "yes"):
            raise Http404
        if (kind and kind not in KINDS) or not page.isdecimal() or not 0 < int(page[:9]) <= MOST_PAGES:
            raise Http404
        role, search = text_in(query, "role", 63), text_in(query, "search", LONGEST_SEARCH)
        return cls(tenant, kind, role, search, int(page), aside == "yes")

    @property
    def address(self) -> str:
        """The query string of this view."""
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
    """Return the open items, except those that this person has already answered."""
    answered = HeldAnswer.objects.filter(
        tenant_id=principal.tenant_id, user_id=principal.user_id or 0, activity_id=OuterRef("pk"), refusal=""
    )
    rows: QuerySet[Any] = Activity.objects.for_tenant(principal.tenant_id).filter(
        OPEN_FOR_PEOPLE, ~Exists(answered)
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


def first_of_alike(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Keep only the oldest escalation of similar failures, which represents the others."""
    place = Window(
        RowNumber(), partition_by=[F("alike"), F("human_role")], order_by=[F("created_at"), F("pk")]
    )
    first = rows.order_by().annotate(place=place).filter(place=1)
    return rows.filter(pk__in=first.values("pk"))


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
