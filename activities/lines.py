"""The head of a tenant's line for a role: what starts next, in the order in which admission takes the tenant's own work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db.models import (
    Case,
    DateTimeField,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    IntegerField,
    OuterRef,
    Q,
    Value,
    When,
)
from django.db.models.functions import Now

from activities.admission.exchange import LEVEL_MS, band_of
from activities.models import Activity, Wake
from activities.selectors import BAND_NAMES
from activities.states import BANDS, Status, WakeState
from tenants import clock

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Waiter:
    """Work that waits. `place` counts from 1; of two groups, one that is at its bound lets others pass.

    `waited_seconds` began when it was submitted.
    """

    place: int
    id: UUID
    name: str
    band: str
    priority: int
    waited_seconds: float
    group: str
    attempts: int


def head_of_line(tenant_id: UUID, role: str) -> Sequence[Waiter]:
    """The first of those that could start now. In the caller's `tenant_scope`."""
    due = Q(due_at=None) | Q(due_at__lte=Now())
    reasons = Wake.objects.for_tenant(tenant_id).filter(
        due, activity_id=OuterRef("pk"), state=WakeState.PENDING
    )
    ready = Activity.objects.for_tenant(tenant_id).filter(
        Exists(reasons), status=Status.CREATED, assignee_type="agent", agent_role=role
    )
    rows = ready.annotate(band=_BAND, turn=_TURN).order_by("band", "turn", "pk")
    shown = ("pk", "name", "priority", "created_at", "group_key", "attempts")
    now = clock.now()
    return [
        Waiter(
            place, row.pk, row.name, BAND_NAMES[band_of(row.priority) - 1], row.priority,
            (now - row.created_at).total_seconds(), row.group_key or "", row.attempts,
        )
        for place, row in enumerate(rows.only(*shown)[:SHOWN], start=1)
    ]  # fmt: skip


_LEVELS = sorted(BANDS.values())
#: Each band begins at its level and ends where the next one begins.
_BAND = Case(
    *(When(priority__lt=level, then=Value(place)) for place, level in enumerate(_LEVELS[1:])),
    default=Value(len(_LEVELS)),
    output_field=IntegerField(),
)
#: Within a band, so much waiting is worth one level of priority.
_TURN = ExpressionWrapper(
    F("created_at")
    + ExpressionWrapper(
        F("priority") * Value(timedelta(milliseconds=LEVEL_MS)), output_field=DurationField()
    ),
    output_field=DateTimeField(),
)
