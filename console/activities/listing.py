"""The list of activities: a query, the views that people need most, and one page of rows with what each waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from activities import selectors, wait_reasons
from activities.models import Activity
from activities.models.activity import in_status
from activities.selectors import TEXTS, Wanted
from activities.states import LinkKind
from console.activities.query_language import Condition, QueryError, parse
from console.labels import band
from console.page import Cursor, page_of
from tenants import clock
from tenants.context import tenant_scope

PAGE = 50

#: Views that are kept for everybody: what they are called, and their query.
VIEWS: tuple[tuple[str, str], ...] = (
    ("Work", ""),
    ("Open", "status:open"),
    ("Running", "status:running"),
    ("Failed", "status:failed,needs_review"),
    ("Blocked", "status:blocked"),
    ("For approval", "status:awaiting_approval"),
    ("Stuck in the queue", "status:created for:agent age:>1h"),
    ("Sent back", "wake:rejection status:open"),
    ("Tried often", "attempts:>1 status:open"),
    ("Last hour", "age:<1h"),
    ("Escalations", "kind:escalation"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One activity of the list."""

    activity: Activity
    reason: str

    @property
    def role(self) -> str:
        return self.activity.agent_role or self.activity.human_role or ""

    @property
    def band(self) -> str:
        return band(self.activity.priority)

    @property
    def lasted(self) -> timedelta | None:
        begun = self.activity.started_at
        return (self.activity.finished_at or clock.now()) - begun if begun else None


@dataclass(frozen=True, slots=True)
class Listing:
    """What the list shows. `error` says what is wrong with the query; then there are no rows."""

    query: str
    rows: Sequence[Row]
    after: Cursor | None
    error: QueryError | None = None
    is_first: bool = True

    @property
    def views(self) -> list[tuple[str, str, bool]]:
        return [(words, query, query == self.query) for words, query in VIEWS]

    @property
    def may_be_all(self) -> bool:
        """Whether the query narrows nothing, so that nothing is done to what it finds."""
        return not self.query

    @property
    def before_error(self) -> str:
        return self.query[: self.error.position - 1] if self.error else ""

    @property
    def at_error(self) -> str:
        return self.query[self.error.position - 1 :] if self.error else ""


def listing(tenant_id: UUID, query: str, after: Any = "") -> Listing:
    """One page of what the query finds, newest first."""
    query = query.strip()
    try:
        conditions = parse(query)
    except QueryError as error:
        return Listing(query, (), None, error)
    place = Cursor.read(str(after)) if after else None
    with tenant_scope(tenant_id):
        rows = found_by(tenant_id, conditions).defer("input", "retry", "metadata")
        page, following = page_of(rows, "created_at", place, PAGE)
        reasons = wait_reasons.briefly(tenant_id, page)
    found = [Row(one, _describe_reason(reasons[one.pk])) for one in page]
    return Listing(query, found, following, is_first=place is None)


def _describe_reason(reason: wait_reasons.Waiting) -> str:
    """Why it does not go on; nothing for what goes on or has ended."""
    return reason.detail if reason.code else ""


# The activities that a query finds: each condition as PostgreSQL is asked for it.


def found_by(tenant_id: UUID, conditions: Sequence[Condition]) -> QuerySet[Activity]:
    """What the conditions find. In the caller's `tenant_scope`.

    The engine asks people about each failure with an activity of its own. These are no work: only who looks for such sees them.
    """
    rows: QuerySet[Activity] = Activity.objects.for_tenant(tenant_id)
    if not any(condition.field in _MAY_MEAN_ESCALATIONS for condition in conditions):
        rows = rows.filter(Q(link_kind=None) | ~Q(link_kind=LinkKind.ESCALATION))
    sought = [condition for condition in conditions if condition.field in _SOUGHT]
    if sought:
        wanted = [Wanted(each.value, _SOUGHT[each.field], each.negated) for each in sought]
        rows = selectors.containing(rows, tenant_id, wanted, before=_made_before(conditions))
    for condition in conditions:
        if condition in sought:
            continue
        narrowed = _FILTERS[condition.field](condition)
        rows = rows.exclude(narrowed) if condition.negated else rows.filter(narrowed)
    return rows


def _made_before(conditions: Sequence[Condition]) -> datetime | None:
    """What is older than an age was made before that moment: a search begins there."""
    ages = [
        each.value for each in conditions if each.field == "age" and each.operator == ">" and not each.negated
    ]
    return clock.now() - max(ages) if ages else None


def _age(condition: Condition) -> Q:
    moment = clock.now() - condition.value
    return Q(created_at__gt=moment) if condition.operator == "<" else Q(created_at__lt=moment)


def _role(condition: Condition) -> Q:
    return Q(agent_role__in=condition.value) | Q(human_role__in=condition.value)


def _equal(name: str) -> Callable[[Condition], Q]:
    return lambda condition: Q(**{name: condition.value})


def _among(name: str) -> Callable[[Condition], Q]:
    return lambda condition: Q(**{f"{name}__in": condition.value})


def _compare(name: str) -> Callable[[Condition], Q]:
    lookups: dict[str, Any] = {"": name, "<": f"{name}__lt", ">": f"{name}__gt"}
    return lambda condition: Q(**{lookups[condition.operator]: condition.value})


#: Who uses one of these says which activities are meant, questions about failures among them.
_MAY_MEAN_ESCALATIONS = frozenset({"words", "name", "for", "kind", "parent"})

#: What is looked for in texts, among as many activities as a search looks at.
_SOUGHT = {"words": TEXTS, **{name: (name,) for name in ("name", "params", "metadata", "error")}}

_FILTERS: dict[str, Callable[[Condition], Q]] = {
    "status": lambda condition: in_status(*condition.value),
    "role": _role,
    "wake": _among("wake_reason"),
    "age": _age,
    "for": _among("assignee_type"),
    "kind": _among("link_kind"),
    "priority": _compare("priority"),
    "attempts": _compare("attempts"),
    "step": _among("step"),
    "run": _equal("pipeline_run_id"),
    "parent": _equal("parent_id"),
    "schedule": _equal("schedule_id"),
    "deliverable": _equal("deliverable_id"),
    "key": _equal("dedup_key"),
}
