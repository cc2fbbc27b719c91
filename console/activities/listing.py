"""The list of activities that match a query, with common queries, the reason why each activity waits, and the form of a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse

from activities import selectors, wait_reasons
from activities.models import Activity
from activities.models.activity import in_status
from activities.selectors import TEXTS, SearchWord
from activities.states import BANDS, LinkKind
from agents import configuration
from console.activities.query_language import Condition, QueryError, parse
from console.internal_api import ApiForm, JsonField
from console.labels import band
from console.page import ACTING, LOOKING, PageContext, Refused, page, page_of, text_in
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role

PAGE = 50

#: Built-in views: label and query.
VIEWS: tuple[tuple[str, str], ...] = (
    ("Work", ""),
    ("Open", "status:open"),
    ("Running", "status:running"),
    ("Failed", "status:failed,needs_review"),
    ("Blocked", "status:blocked"),
    ("Awaiting approval", "status:awaiting_approval"),
    ("Stuck in queue", "status:created for:agent age:>1h"),
    ("Changes requested", "wake:rejection status:open"),
    ("Retried", "attempts:>1 status:open"),
    ("Last hour", "age:<1h"),
    ("Escalations", "kind:escalation"),
)


@page("activities")
def list_activities(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The activities that match a query, newest first."""
    listed = listing(visit.tenant_id, request.GET.get("q", ""), request.GET.get("after", ""))
    return visit.render(
        "console/activities/list.html", {"listing": listed}, status=400 if listed.error else 200
    )


@page("activities", (*LOOKING, *ACTING), least=Role.OPERATOR)
def new(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The form of a new activity. A POST submits it."""
    form = NewActivityForm(request.POST or None)
    if request.method == "POST" and (reply := form.send(visit, "POST", "/activities/")):
        return visit.redirect("The activity was submitted.", "activity", reply.data["id"])
    return visit.render("console/activities/new.html", {"form": form})


@dataclass(frozen=True, slots=True)
class Row:
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
        started = self.activity.started_at
        return (self.activity.finished_at or clock.now()) - started if started else None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the list. With an `error` in the query there are no rows."""

    query: str
    rows: Sequence[Row]
    after: str
    error: QueryError | None = None
    is_first: bool = True

    @property
    def views(self) -> list[tuple[str, str, bool]]:
        return [(words, query, query == self.query) for words, query in VIEWS]

    @property
    def may_be_all(self) -> bool:
        """Whether the query is empty, so that bulk actions are not offered."""
        return not self.query

    @property
    def before_error(self) -> str:
        return self.query[: self.error.position - 1] if self.error else ""

    @property
    def at_error(self) -> str:
        return self.query[self.error.position - 1 :] if self.error else ""


def listing(tenant_id: UUID, query: str, after: str = "") -> Listing:
    """Return one page of the matching activities, newest first."""
    query = query.strip()
    try:
        conditions = parse(query)
    except QueryError as error:
        return Listing(query, (), "", error)
    with tenant_scope(tenant_id):
        rows = filter_by(tenant_id, conditions).defer("input", "retry", "metadata")
        activities, following = page_of(rows, "created_at", after, PAGE)
        reasons = wait_reasons.explain_many(tenant_id, activities)
    # A reason without a code only describes work that is running or has ended.
    listed = [Row(one, reasons[one.pk].detail if reasons[one.pk].code else "") for one in activities]
    return Listing(query, listed, following, is_first=not after)


# Translates conditions into filters.


def filter_by(tenant_id: UUID, conditions: Sequence[Condition]) -> QuerySet[Activity]:
    """Return the activities that match all conditions. In the caller's `tenant_scope`.

    Escalations are excluded unless a condition may mean them, because they only ask people about failed work.
    """
    rows: QuerySet[Activity] = Activity.objects.for_tenant(tenant_id)
    if not any(condition.field in _MAY_MEAN_ESCALATIONS for condition in conditions):
        rows = rows.filter(Q(link_kind=None) | ~Q(link_kind=LinkKind.ESCALATION))
    searched = [condition for condition in conditions if condition.field in _SEARCHED]
    if searched:
        words = [SearchWord(each.value, _SEARCHED[each.field], each.negated) for each in searched]
        # All matches were created before this time, so a text search can start at it.
        ages = [
            each.value
            for each in conditions
            if each.field == "age" and each.operator == ">" and not each.negated
        ]
        rows = selectors.containing(rows, tenant_id, words, before=clock.now() - max(ages) if ages else None)
    for condition in conditions:
        if condition in searched:
            continue
        lookup = _FILTERS[condition.field](condition)
        rows = rows.exclude(lookup) if condition.negated else rows.filter(lookup)
    return rows


def _age(condition: Condition) -> Q:
    moment = clock.now() - condition.value
    return Q(created_at__gt=moment) if condition.operator == "<" else Q(created_at__lt=moment)


def _equal(name: str) -> Callable[[Condition], Q]:
    return lambda condition: Q(**{name: condition.value})


def _among(name: str) -> Callable[[Condition], Q]:
    return lambda condition: Q(**{f"{name}__in": condition.value})


def _compare(name: str) -> Callable[[Condition], Q]:
    lookups: dict[str, Any] = {"": name, "<": f"{name}__lt", ">": f"{name}__gt"}
    return lambda condition: Q(**{lookups[condition.operator]: condition.value})


#: A query with one of these fields includes escalations.
_MAY_MEAN_ESCALATIONS = frozenset({"words", "name", "for", "kind", "parent"})

#: Fields that are searched as texts, each with the columns.
_SEARCHED = {"words": TEXTS, **{name: (name,) for name in ("name", "params", "metadata", "error")}}

_FILTERS: dict[str, Callable[[Condition], Q]] = {
    "status": lambda condition: in_status(*condition.value),
    "role": lambda condition: Q(agent_role__in=condition.value) | Q(human_role__in=condition.value),
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


class NewActivityForm(ApiForm):
    #: The kind of assignee that a field is for; other fields are for both.
    fits: ClassVar[Mapping[str, str]] = {
        "human_role": PERSON, "is_approval_gate": PERSON, "content": "agent", "params": "agent", "requires_approval": "agent",
    }  # fmt: skip
    chooser = "who"

    name = forms.CharField(max_length=200)
    who = forms.ChoiceField(label="Assignee")
    human_role = forms.CharField(
        label="Human role",
        required=False,
        max_length=63,
        help_text="People with this role see it in their inbox, such as editor.",
    )
    description = forms.CharField(
        label="Description",
        required=False,
        strip=False,
        max_length=100_000,
        widget=forms.Textarea(attrs={"rows": 4}),
    )
    content = forms.CharField(
        label="Input", required=False, strip=False, widget=forms.Textarea(attrs={"rows": 4})
    )
    params = JsonField(label="Parameters", required=False, help_text='As JSON, such as {"topic": "bees"}.')
    priority = forms.ChoiceField(choices=[(name, name) for name in BANDS], initial="normal")
    requires_approval = forms.BooleanField(label="Requires approval by a person", required=False)
    is_approval_gate = forms.BooleanField(
        label="Is approved or rejected instead of completed", required=False
    )

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        roles = [(f"agent:{role}", role) for role in sorted(configuration.list_roles())]
        self.fields["who"].choices = [("Agents", roles), ("People", [(PERSON, "A person")])]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("who") == PERSON and not cleaned.get("human_role"):
            self.add_error("human_role", "This field is required.")
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

    def places(self) -> Mapping[str, str]:
        return {"agent_role": "who", "input.content": "content"}


# The new assignee of an activity: the role of an agent, or a human role.


ASSIGNEES = ("agent_role", "human_role")
NO_ASSIGNEE = "Choose the role of an agent, or enter a human role."
TWO_ASSIGNEES = "Choose either the role of an agent or a human role, not both."


def read_assignee(sent: Mapping[str, Any]) -> dict[str, str]:
    """Return the chosen role by its name in the API. Raises `Refused` unless exactly one is chosen."""
    chosen = {name: role for name in ASSIGNEES if (role := text_in(sent, name, 63))}
    if len(chosen) != 1:
        raise Refused(TWO_ASSIGNEES if chosen else NO_ASSIGNEE, status=400)
    return chosen
