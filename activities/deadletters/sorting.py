"""Sorting: failures that look alike, together, and how many wait for people."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, CharField, Count, Max, Min, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Collate

from activities.models import DeadLetter
from activities.models.dead_letter import DeadLetterState, LetterKind


def groups(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Dead letters that look alike: `count`, how many of them are `open`, when they came, and the id of the newest as `example`.

    The rows are named tuples; they can still be filtered by what a dead letter has.
    """
    alike = ("fingerprint", "agent_role", "reason")
    # As text, since not every PostgreSQL compares UUIDs in an aggregate; in the order of their digits.
    newest = Max(Collate(Cast("pk", TextField()), "C"))
    counted = rows.order_by().values(*alike).annotate(
        count=Count("pk"),
        open=Count("pk", filter=Q(state=DeadLetterState.OPEN)),
        first_at=Min("created_at"),
        last_at=Max("created_at"),
        example=newest,
    )  # fmt: skip
    return counted.values_list(*alike, "count", "open", "first_at", "last_at", "example", named=True)


def open_letters() -> dict[tuple[str, str, str], int]:
    """How many people have not dealt with, by role (empty for a consumer outside), kind and reason. In the scope that is open."""
    kind = Case(
        When(mailbox_item_id=None, then=Value(LetterKind.ACTIVITY.value)),
        default=Value(LetterKind.MAILBOX_ITEM.value),
        output_field=CharField(),
    )
    counted = (
        DeadLetter.objects.filter(state=DeadLetterState.OPEN)
        .annotate(what=kind)
        .values_list("agent_role", "what", "reason")
        .annotate(count=Count("pk"))
        .order_by()
    )
    return {(role, what, reason): count for role, what, reason, count in counted}
