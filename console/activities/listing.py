"""The list of activities: a query, the views that people need most, and one page of rows with what each waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from activities import selectors, wait_reasons
from activities.models import Activity
from activities.models.activity import in_status
from activities.selectors import TEXTS, SearchWord
from activities.states import BANDS, LinkKind
from agents import configuration
from console.activities.query_language import Condition, QueryError, parse
from console.internal_api import ApiForm, JsonField, Reply
from console.labels import band
from console.page import (
    ACTING,
    LOOKING,
    Cursor,
    PageContext,
    page,
    page_of,
    redirect_with_success,
    render_page,
)
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role

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


@page("activities")
def list_activities(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What a query finds, newest first."""
    found = listing(visit.tenant_id, request.GET.get("q", ""), request.GET.get("after", ""))
    context = {"listing": found, "may_operate": visit.who.role.includes(Role.OPERATOR)}
    return render_page(
        request, visit, "console/activities/list.html", context, status=400 if found.error else 200
    )


@page("activities", (*LOOKING, *ACTING), least=Role.OPERATOR)
def new(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """A form for a piece of work. A POST submits it."""
    form = NewActivityForm(request.POST or None)
    if request.method == "POST" and (reply := form.send(request, visit.who, "POST", "/activities/")):
        address = reverse("console:activity", args=[reply.data["id"]])
        return redirect_with_success(request, visit, address, "It was submitted.")
    status = form.status if form.errors else 200
    return render_page(request, visit, "console/activities/new.html", {"form": form}, status)


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
    def duration(self) -> timedelta | None:
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
        rows = filter_by(tenant_id, conditions).defer("input", "retry", "metadata")
        activities, following = page_of(rows, "created_at", place, PAGE)
        reasons = wait_reasons.briefly(tenant_id, activities)
    found = [Row(one, _describe_reason(reasons[one.pk])) for one in activities]
    return Listing(query, found, following, is_first=place is None)


def _describe_reason(reason: wait_reasons.Waiting) -> str:
    """Why it does not go on; nothing for what goes on or has ended."""
    return reason.detail if reason.code else ""


# The activities that a query finds: each condition as PostgreSQL is asked for it.


def filter_by(tenant_id: UUID, conditions: Sequence[Condition]) -> QuerySet[Activity]:
    """What the conditions find. In the caller's `tenant_scope`.

    The engine asks people about each failure with an activity of its own. These are no work: only who looks for such sees them.
    """
    rows: QuerySet[Activity] = Activity.objects.for_tenant(tenant_id)
    if not any(condition.field in _MAY_MEAN_ESCALATIONS for condition in conditions):
        rows = rows.filter(Q(link_kind=None) | ~Q(link_kind=LinkKind.ESCALATION))
    sought = [condition for condition in conditions if condition.field in _SOUGHT]
    if sought:
        words = [SearchWord(each.value, _SOUGHT[each.field], each.negated) for each in sought]
        rows = selectors.containing(rows, tenant_id, words, before=_created_before(conditions))
    for condition in conditions:
        if condition in sought:
            continue
        narrowed = _FILTERS[condition.field](condition)
        rows = rows.exclude(narrowed) if condition.negated else rows.filter(narrowed)
    return rows


def _created_before(conditions: Sequence[Condition]) -> datetime | None:
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


# The form of a new activity: a piece of work for an agent, or a question to people.

PERSON = "person"

_STANDS_IN = {"agent_role": "who", "input.content": "content"}


class NewActivityForm(ApiForm):
    """What there is to do, and who does it."""

    #: By the name of a field, for whom it is; the others are for all.
    fits: ClassVar[Mapping[str, str]] = {
        "human_role": PERSON, "is_approval_gate": PERSON, "content": "agent", "params": "agent", "requires_approval": "agent",
    }  # fmt: skip

    name = forms.CharField(max_length=200)
    who = forms.ChoiceField(label="Done by")
    human_role = forms.CharField(
        label="Role of the person",
        required=False,
        max_length=63,
        help_text="Whose inbox it belongs to, such as editor.",
    )
    description = forms.CharField(
        label="What there is to do",
        required=False,
        strip=False,
        max_length=100_000,
        widget=forms.Textarea(attrs={"rows": 4}),
    )
    content = forms.CharField(
        label="What it works on", required=False, strip=False, widget=forms.Textarea(attrs={"rows": 4})
    )
    params = JsonField(label="Parameters", required=False, help_text='As JSON, such as {"topic": "bees"}.')
    priority = forms.ChoiceField(choices=[(name, name) for name in BANDS], initial="normal")
    requires_approval = forms.BooleanField(label="A person approves its output", required=False)
    is_approval_gate = forms.BooleanField(label="Answered by yes or no, not done", required=False)

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        roles = [(f"agent:{role}", role) for role in sorted(configuration.list_roles())]
        self.fields["who"].choices = [("Agents", roles), ("People", [(PERSON, "A person")])]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        is_person = cleaned.get("who") == PERSON
        for name, kind in self.fits.items():
            if (kind == PERSON) != is_person:
                self.errors.pop(name, None)  # nobody sees the field, and nothing is made of it
        if is_person and not cleaned.get("human_role"):
            self.add_error("human_role", "This is needed here.")
        return cleaned

    def body(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        who = PERSON if cleaned["who"] == PERSON else "agent"
        body: dict[str, Any] = {
            "name": cleaned["name"],
            "description": cleaned["description"],
            "priority": cleaned["priority"],
        }
        if who == PERSON:
            return body | {
                "human_role": cleaned["human_role"],
                "is_approval_gate": cleaned["is_approval_gate"],
            }
        body |= {
            "agent_role": cleaned["who"].partition(":")[2],
            "requires_approval": cleaned["requires_approval"],
        }
        body |= {"params": cleaned["params"]} if cleaned["params"] else {}
        return body | ({"input": {"content": cleaned["content"]}} if cleaned["content"].strip() else {})

    def blame(self, reply: Reply) -> None:
        errors = {_STANDS_IN.get(path, path): message for path, message in reply.errors.items()}
        super().blame(Reply(reply.status, reply.data, errors))
