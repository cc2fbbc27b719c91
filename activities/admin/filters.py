"""Filters whose choices are known without looking through the table."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from activities.models import Activity
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import RUNNING, Status
from agents.models import Agent


class SituationFilter(SimpleListFilter):
    """What an operator looks for: several statuses at once."""

    title, parameter_name = "situation", "situation"

    SITUATIONS = {
        "queued": ("Waits for a worker", Q(status=Status.CREATED, assignee_type="agent")),
        "running": ("Runs", Q(status__in=RUNNING, assignee_type="agent")),
        "people": ("Waits for a person", OPEN_FOR_PEOPLE),
        "trouble": ("Failed or blocked", Q(status__in=(Status.FAILED, Status.NEEDS_REVIEW, Status.BLOCKED))),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(key, words) for key, (words, _) in self.SITUATIONS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Activity]) -> QuerySet[Activity]:
        found = self.SITUATIONS.get(self.value() or "")
        return queryset.filter(found[1]) if found else queryset


class RoleFilter(SimpleListFilter):
    """The agent's role, from the registry."""

    title, parameter_name = "role", "role"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(role, role) for role in Agent.objects.order_by("role").values_list("role", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Activity]) -> QuerySet[Activity]:
        return queryset.filter(agent_role=self.value()) if self.value() else queryset
