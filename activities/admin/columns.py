"""Parts of lists in the admin: colours of statuses (next to the word), filters, and pages with facts from elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Any
from uuid import UUID

from django.contrib.admin import ChoicesFieldListFilter, SimpleListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from unfold.views import ChangeList

from activities.models import Activity
from activities.models.activity import in_status
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import INDEXED, RUNNING, STATUSES, Status
from agents.models import Agent

_COLOUR_OF_TONE = {"live": "info", "ask": "warning", "good": "success", "bad": "danger"}
STATUS = {str(status): _COLOUR_OF_TONE.get(spec.tone, "") for status, spec in STATUSES.items()}


class PageByTenant(ChangeList, ABC):
    """A page of a list that adds facts to its rows, with a constant number of statements for each tenant on the page."""

    @abstractmethod
    def add_facts(self, tenant_id: UUID, rows: list[Any]) -> None:
        """Add the facts to the rows, which belong to this tenant."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        by_tenant: dict[UUID, list[Any]] = defaultdict(list)
        for row in self.result_list:
            by_tenant[row.tenant_id].append(row)
        for tenant_id, rows in by_tenant.items():
            self.add_facts(tenant_id, rows)


# Filters whose choices need no query over the table.


class SituationFilter(SimpleListFilter):
    """Groups of statuses that operators look for."""

    title, parameter_name = "situation", "situation"

    SITUATIONS = {
        "queued": ("Waiting for a worker", Q(in_status(Status.CREATED), assignee_type="agent")),
        "running": ("Running", Q(in_status(*RUNNING), assignee_type="agent")),
        "people": ("Waiting for a person", OPEN_FOR_PEOPLE),
        "trouble": ("Failed or blocked", in_status(Status.FAILED, Status.NEEDS_REVIEW, Status.BLOCKED)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(key, words) for key, (words, _) in self.SITUATIONS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Activity]) -> QuerySet[Activity]:
        situation = self.SITUATIONS.get(self.value() or "")
        return queryset.filter(situation[1]) if situation else queryset


class StatusFilter(ChoicesFieldListFilter):
    """The status, filtered with the condition of the partial index, so that PostgreSQL uses it."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Activity]) -> QuerySet[Activity]:
        rows: Any = super().queryset(request, queryset)
        indexed = [status for status in self.lookup_val or () if status in INDEXED]
        return rows.filter(in_status(*indexed)) if indexed else rows


class RoleFilter(SimpleListFilter):
    """The agent's role, with the roles of the registry as choices."""

    title, parameter_name = "role", "role"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(role, role) for role in Agent.objects.order_by("role").values_list("role", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Activity]) -> QuerySet[Activity]:
        return queryset.filter(agent_role=self.value()) if self.value() else queryset
