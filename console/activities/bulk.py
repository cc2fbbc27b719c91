"""Applies one action to all activities that match a query: counts and lists them first, then starts a bulk job of the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode

from activities import bulk_jobs, selectors
from activities.bulk_jobs import MOST
from activities.exceptions import ActivityError
from activities.models import Activity, BulkItem, BulkJob
from activities.models.bulk import BulkAction, BulkStatus, ItemState
from activities.states import BANDS, LinkKind
from agents import configuration
from agents.models import Agent
from console.activities.listing import NO_ASSIGNEE, filter_by, read_assignee
from console.activities.query_language import QueryError, parse
from console.page import ACTING, LOOKING, PageContext, Refused, page, text_in
from tenants import audit
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal

SAMPLE = 10
MOST_TROUBLES = 50
LONGEST_REASON = 2_000
DIGITS = 32  # of the digest of the matching activities
WORDS = {
    BulkAction.CANCEL: "Cancel",
    BulkAction.RETRY: "Retry",
    BulkAction.PRIORITY: "Set priority",
    BulkAction.REASSIGN: "Reassign",
}


@page("activities", (*LOOKING, *ACTING), least=Role.OPERATOR)
def many(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The count and a sample of the activities that match a query. A POST applies an action to all of them."""
    query, error, status = request.GET.get("q", "").strip(), "", 200
    try:
        if request.method == "POST":
            started = start(visit.who, query, request.POST)
            return visit.redirect("", "activities_bulk_job", started.pk)
    except (BadBulkRequest, ActivityError, Refused) as refusal:
        error, status = str(refusal), refusal.status
    except QueryError:
        return _redirect_to_error(visit, query)
    try:
        context = {
            "preview": preview(visit.tenant_id, query),
            "error": error,
            "sent": request.POST if error else {},
        }
    except (QueryError, BadBulkRequest):
        return _redirect_to_error(visit, query)
    return visit.render("console/activities/many.html", context, status=status)


@page("activities")
def job(request: HttpRequest, visit: PageContext, job_id: UUID) -> HttpResponse:
    state = progress(visit.tenant_id, job_id)
    return visit.render("console/activities/job.html", {"progress": state, "job": state.job})


@page("activities", ACTING)
def stop_job(request: HttpRequest, visit: PageContext, job_id: UUID) -> HttpResponse:
    """Stop a bulk job. Completed changes are kept."""
    reply = visit.call("POST", f"/bulk-jobs/{job_id}/cancel/", {})
    return visit.answer(reply, "The job was stopped.", "activities_bulk_job", job_id)


def _redirect_to_error(visit: PageContext, query: str) -> HttpResponse:
    """Redirect to the list, which displays the error of the query."""
    return redirect(f"{reverse('console:activities')}?{visit.query}&{urlencode({'q': query})}")


class BadBulkRequest(ValueError):
    """The request is invalid. `status` is that of the page."""

    status = HTTPStatus.BAD_REQUEST


class OthersMatch(BadBulkRequest):
    """The query matches other activities than those that the page displayed."""

    status = HTTPStatus.CONFLICT


@dataclass(frozen=True, slots=True)
class Preview:
    """The activities that match a query now. `seen` is the digest of their ids."""

    query: str
    count: int
    seen: str
    sample: Sequence[Activity]
    agent_roles: Sequence[str]
    human_roles: Sequence[str]
    actions: Mapping[str, str]
    bands: Mapping[str, int]


def preview(tenant_id: UUID, query: str) -> Preview:
    """Count and sample the matching activities. Raises `QueryError`, `BadBulkRequest`."""
    with tenant_scope(tenant_id):
        rows = _find_activities(tenant_id, query)
        sample = rows.only("id", "name", "status", "agent_role", "human_role")
        ids = _ids(rows)
        return Preview(
            query=query,
            count=len(ids) if len(ids) <= MOST else rows.count(),
            seen=_digest(ids),
            sample=list(sample.order_by("-created_at", "-pk")[:SAMPLE]),
            agent_roles=sorted(configuration.list_roles()),
            human_roles=selectors.list_human_roles(tenant_id),
            actions={str(action): words for action, words in WORDS.items()},
            bands=BANDS,
        )


def start(who: Principal, query: str, sent: Mapping[str, Any]) -> BulkJob:
    """Start a job, if the query still matches the displayed activities. Raises `QueryError`, `BadBulkRequest` and `ActivityError`."""
    action, arguments = _read(sent)
    expected = str(sent.get("expected", ""))
    if not expected.isdecimal():
        raise BadBulkRequest("Preview the matching activities first.")
    with tenant_scope(who.tenant_id):
        ids = _ids(_find_activities(who.tenant_id, query))
        if len(ids) == int(expected[:9]) and sent.get("seen") != _digest(ids):
            raise OthersMatch(
                "The query now matches the same number of activities, but different ones. Check the list again."
            )
        job = bulk_jobs.start(
            who.tenant_id,
            action,
            ids,
            expected=int(expected[:9]),
            filter={"query": query},
            arguments=arguments,
            creator=who,
        )
        # Recorded here, because this does not go through the API, which has no queries.
        started = {"action": job.action, "count": job.total}
        audit.record_action(who, "bulk_job.started", about=("bulk-jobs", job.pk), detail=started)
    return job


def _ids(rows: QuerySet[Activity]) -> list[UUID]:
    """Return the matching ids; one more than a job may have means that there are too many."""
    return list(rows.order_by("pk").values_list("pk", flat=True)[: MOST + 1])


def _digest(ids: Sequence[UUID]) -> str:
    return hashlib.sha256(b"".join(each.bytes for each in ids)).hexdigest()[:DIGITS]


def _find_activities(tenant_id: UUID, query: str) -> QuerySet[Activity]:
    """Return the matching activities without gates, because a gate ends with the activity that waits for it."""
    conditions = parse(query)
    if not conditions:
        raise BadBulkRequest("Enter a query first: without a condition all activities would match.")
    return filter_by(tenant_id, conditions).exclude(link_kind=LinkKind.GATE)


def _read(sent: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    action, reason = str(sent.get("action", "")), text_in(sent, "reason", LONGEST_REASON + 1)
    if action not in WORDS:
        raise BadBulkRequest("Choose an action.")
    if len(reason) > LONGEST_REASON:
        raise BadBulkRequest(f"A reason can have at most {LONGEST_REASON} characters.")
    if action == BulkAction.PRIORITY:
        band = str(sent.get("priority", ""))
        if band not in BANDS:
            raise BadBulkRequest("Choose a priority.")
        return action, {"priority": BANDS[band]}
    if action == BulkAction.REASSIGN:
        assignee = read_assignee(sent)
        role = assignee.get("agent_role")
        if role and not Agent.objects.filter(role=role, enabled=True).exists():
            raise BadBulkRequest(NO_ASSIGNEE)
        if not reason:
            raise BadBulkRequest("Enter a reason for the new assignee.")
        return action, {**assignee, "reason": reason}
    return action, {"reason": reason} if reason and action == BulkAction.CANCEL else {}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job, with the items that were skipped or failed."""

    job: BulkJob
    troubles: Sequence[BulkItem]

    @property
    def is_running(self) -> bool:
        return self.job.status == BulkStatus.RUNNING

    @property
    def processed_count(self) -> int:
        return self.job.done + self.job.skipped + self.job.failed

    @property
    def query(self) -> str:
        return str(self.job.filter.get("query", ""))

    @property
    def words(self) -> str:
        return WORDS[BulkAction(self.job.action)]


def progress(tenant_id: UUID, job_id: UUID) -> Progress:
    """Return the progress of a job. Raises `Http404`."""
    with tenant_scope(tenant_id):
        job = BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id).first_or_raise(Http404())
        items = BulkItem.objects.for_tenant(tenant_id).filter(
            job_id=job_id, state__in=(ItemState.SKIPPED, ItemState.FAILED)
        )
        rows = items.select_related("activity").only(
            "state", "error", "activity__name", "job_id", "tenant_id"
        )
        return Progress(job, list(rows.order_by("pk")[:MOST_TROUBLES]))
