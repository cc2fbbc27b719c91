"""The activities that a query finds: each condition as PostgreSQL is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from activities.models import Activity
from console.activities.query_language import Condition
from tenants import clock


def found_by(tenant_id: UUID, conditions: Sequence[Condition]) -> QuerySet[Activity]:
    """What the conditions find. In the caller's `tenant_scope`."""
    rows = Activity.objects.for_tenant(tenant_id)
    for condition in conditions:
        wanted = _FILTERS[condition.field](condition)
        rows = rows.exclude(wanted) if condition.negated else rows.filter(wanted)
    found: QuerySet[Activity] = rows
    return found


def _words(condition: Condition) -> Q:
    return Q(name__icontains=condition.value) | Q(description__icontains=condition.value)


def _age(condition: Condition) -> Q:
    moment = clock.now() - condition.value
    return Q(created_at__gt=moment) if condition.operator == "<" else Q(created_at__lt=moment)


def _role(condition: Condition) -> Q:
    return Q(agent_role__in=condition.value) | Q(human_role__in=condition.value)


def _equal(name: str) -> Callable[[Condition], Q]:
    return lambda condition: Q(**{name: condition.value})


def _among(name: str) -> Callable[[Condition], Q]:
    return lambda condition: Q(**{f"{name}__in": condition.value})


def _compared(name: str) -> Callable[[Condition], Q]:
    lookups: dict[str, Any] = {"": name, "<": f"{name}__lt", ">": f"{name}__gt"}
    return lambda condition: Q(**{lookups[condition.operator]: condition.value})


_FILTERS: dict[str, Callable[[Condition], Q]] = {
    "words": _words,
    "name": lambda condition: Q(name__icontains=condition.value),
    "status": _among("status"),
    "role": _role,
    "wake": _among("wake_reason"),
    "age": _age,
    "for": _among("assignee_type"),
    "priority": _compared("priority"),
    "attempts": _compared("attempts"),
    "step": _among("step"),
    "run": _equal("pipeline_run_id"),
    "parent": _equal("parent_id"),
    "schedule": _equal("schedule_id"),
    "deliverable": _equal("deliverable_id"),
    "key": _equal("dedup_key"),
}
