"""Pages of activities."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode

from activities.exceptions import ActivityError
from activities.states import BANDS
from agents import configuration
from console.activities import bulk
from console.activities.bulk import NotAsked
from console.activities.detail import detail, log_of, tail_of, texts, watched
from console.activities.listing import listing
from console.activities.query_language import QueryError
from console.inbox.items import Refused
from console.inbox.listing import parts_wanted
from console.internal_api import ApiForm, JsonField, Reply, call_api
from console.page import ACTING, LOOKING, PageContext, done, page, refusal_of, render_page
from tenants.models import Role
from tenants.principals import Principal

LONGEST_NUMBER = 18  # digits


@page("activities")
def listed(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What a query finds, newest first."""
    found = listing(visit.tenant_id, request.GET.get("q", ""), request.GET.get("after", ""))
    context = {"listing": found, "may_operate": _may_operate(visit)}
    return render_page(
        request, visit, "console/activities/list.html", context, status=400 if found.error else 200
    )


@page("activities", (*LOOKING, *ACTING), least=Role.OPERATOR)
def new(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """A form for a piece of work. A POST submits it."""
    form = NewActivityForm(request.POST or None)
    if request.method == "POST" and (reply := form.send(request, visit.who, "POST", "/activities/")):
        address = reverse("console:activity", args=[reply.data["id"]])
        return done(request, visit, address, "It was submitted.")
    status = form.status if form.errors else 200
    return render_page(request, visit, "console/activities/new.html", {"form": form}, status)


def _act(request: HttpRequest, visit: PageContext, activity_id: UUID) -> HttpResponse:
    changed, words = act_on_activity(request, visit.who, activity_id)
    return done(request, visit, reverse("console:activity", args=[changed]), words)


@page("activities", act=_act)
def one(request: HttpRequest, visit: PageContext, activity_id: UUID) -> HttpResponse:
    """One activity. A POST cancels it, tries it again or hands it on."""
    parts = parts_wanted(request) or frozenset()
    if request.method != "POST" and parts and parts <= {"running", "log"}:
        return _run_alone(request, visit, activity_id, with_log="log" in parts)
    found = detail(visit.who, activity_id)
    context = {
        "detail": found,
        "watched": found.watched,
        "log": tail_of(visit.tenant_id, found.watched.run) if "log" in parts and found.watched else None,
        "activity": found.activity,
        "roles": roles() if "reassign" in found.actions else (),
    }
    return render_page(request, visit, "console/activities/one.html", context)


def _run_alone(
    request: HttpRequest, visit: PageContext, activity_id: UUID, *, with_log: bool
) -> HttpResponse:
    """What changes all the time while an agent works, without the rest of the page."""
    activity, run = watched(visit.tenant_id, activity_id)
    log = tail_of(visit.tenant_id, run.run) if with_log and run is not None else None
    context = {"activity": activity, "watched": run, "log": log}
    return render_page(request, visit, "console/activities/running.html", context)


@page("activities")
def whole_log(request: HttpRequest, visit: PageContext, activity_id: UUID, run_id: UUID) -> HttpResponse:
    """Everything that an agent said during a run, page by page."""
    after = request.GET.get("after", "")
    number = int(after) if after.isascii() and after.isdecimal() and len(after) < LONGEST_NUMBER else 0
    activity, log = log_of(visit.tenant_id, activity_id, run_id, number)
    return render_page(request, visit, "console/activities/log.html", {"activity": activity, "log": log})


@page("activities")
def both_texts(request: HttpRequest, visit: PageContext, activity_id: UUID) -> HttpResponse:
    """What its agent was told and what it made of it."""
    found = texts(visit.tenant_id, activity_id, request.GET.get("run", ""))
    return render_page(
        request, visit, "console/activities/texts.html", {"texts": found, "activity": found.activity}
    )


@page("activities", (*LOOKING, *ACTING), least=Role.OPERATOR)
def many(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What a query finds is counted and shown; a POST deals with all of it."""
    query, error, status = request.GET.get("q", "").strip(), "", 200
    try:
        if request.method == "POST":
            started = bulk.start(visit.who, query, request.POST)
            return redirect(f"{reverse('console:activities_bulk_job', args=[started.pk])}?{visit.query}")
    except (NotAsked, ActivityError) as refusal:
        error, status = str(refusal), refusal.status
    except QueryError:
        return _back_to_the_error(visit, query)
    try:
        context = {
            "preview": bulk.preview(visit.tenant_id, query),
            "error": error,
            "sent": request.POST if error else {},
        }
    except (QueryError, NotAsked):
        return _back_to_the_error(visit, query)
    return render_page(request, visit, "console/activities/many.html", context, status=status)


@page("activities")
def job(request: HttpRequest, visit: PageContext, job_id: UUID) -> HttpResponse:
    """How a bulk job gets on."""
    progress = bulk.progress(visit.tenant_id, job_id)
    if progress is None:
        raise Http404
    context = {"progress": progress, "job": progress.job, "may_operate": _may_operate(visit)}
    return render_page(request, visit, "console/activities/job.html", context)


@page("activities", ACTING)
def stop_job(request: HttpRequest, visit: PageContext, job_id: UUID) -> HttpResponse:
    """What is done stays done; the rest stays as it is."""
    address = reverse("console:activities_bulk_job", args=[job_id])
    reply = call_api(request, visit.who, "POST", f"/bulk-jobs/{job_id}/cancel/", {})
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    if not reply.ok:
        messages.error(request, reply.reason)
        return redirect(f"{address}?{visit.query}")
    return done(request, visit, address, "It was stopped.")


def _may_operate(visit: PageContext) -> bool:
    return visit.who.role.includes(Role.OPERATOR)


def _back_to_the_error(visit: PageContext, query: str) -> HttpResponse:
    """The list says what is wrong with a query, and where."""
    return redirect(f"{reverse('console:activities')}?{visit.query}&{urlencode({'q': query})}")


# What operators do with one activity on its page, through the API's own views.


LONGEST_VERSION = 9  # digits
DONE = {
    "cancel": "It was cancelled.",
    "retry": "It starts again.",
    "reassign": "It was handed on.",
    "run-now": "It goes before all other work, past pauses and dates.",
}
CHANGED = "It has changed since you looked. Look at it as it is now; nothing was done."


def act_on_activity(request: HttpRequest, who: Principal, activity_id: UUID) -> tuple[UUID, str]:
    """Cancel it, try it again, hand it on or have it run now, if it still is as the page showed it.

    Returns its id or its successor's, and what was done.

    Raises `Refused`, `Http404`.
    """
    sent = request.POST
    deed, version = sent.get("deed", ""), sent.get("version", "")
    if deed not in DONE or not version.isdecimal():
        raise Refused("Choose what is to be done.", status=HTTPStatus.BAD_REQUEST)
    body: dict[str, Any] = {"reason": sent["reason"]} if deed != "retry" and "reason" in sent else {}
    if deed == "reassign":
        body |= {"assignee_type": "agent", "agent_role": sent.get("agent_role", "")}
    path = f"/activities/{activity_id}/{deed}/"
    reply = call_api(request, who, "POST", path, body, version=int(version[:LONGEST_VERSION]))
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    if reply.status == HTTPStatus.PRECONDITION_FAILED:
        raise Refused(CHANGED, status=HTTPStatus.CONFLICT)
    if not reply.ok:
        raise refusal_of(reply)
    return UUID(str(reply.data["id"])), DONE[deed]


def roles() -> list[str]:
    """Who can take over."""
    return sorted(configuration.known_roles())


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
        roles = [(f"agent:{role}", role) for role in sorted(configuration.known_roles())]
        self.fields["who"].choices = [("Agents", roles), ("People", [(PERSON, "A person")])]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        is_person = given.get("who") == PERSON
        for name, kind in self.fits.items():
            if (kind == PERSON) != is_person:
                self.errors.pop(name, None)  # nobody sees the field, and nothing is made of it
        if is_person and not given.get("human_role"):
            self.add_error("human_role", "This is needed here.")
        return given

    def body(self) -> dict[str, Any]:
        given = self.cleaned_data
        who = PERSON if given["who"] == PERSON else "agent"
        body: dict[str, Any] = {
            "name": given["name"],
            "description": given["description"],
            "priority": given["priority"],
        }
        if who == PERSON:
            return body | {"human_role": given["human_role"], "is_approval_gate": given["is_approval_gate"]}
        body |= {
            "agent_role": given["who"].partition(":")[2],
            "requires_approval": given["requires_approval"],
        }
        body |= {"params": given["params"]} if given["params"] else {}
        return body | ({"input": {"content": given["content"]}} if given["content"].strip() else {})

    def blame(self, reply: Reply) -> None:
        told = {_STANDS_IN.get(path, path): message for path, message in reply.errors.items()}
        super().blame(Reply(reply.status, reply.data, told))
