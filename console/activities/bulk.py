"""One thing done to all activities that a query finds: first counted and shown, then given to the engine's bulk jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from activities import bulk_jobs
from activities.bulk_jobs import MOST
from activities.models import Activity, BulkItem, BulkJob
from activities.models.bulk import BulkAction, BulkStatus, ItemState
from activities.states import BANDS, LinkKind
from agents import configuration
from agents.models import Agent
from console.activities.query_language import parse
from tenants import audit
from tenants.context import tenant_scope
from tenants.principals import Principal

from .listing import found_by

SAMPLE = 10
MOST_TROUBLES = 50
LONGEST_REASON = 2_000
DIGITS = 32  # of what stands for the activities that were seen
WORDS = {
    BulkAction.CANCEL: "Cancel",
    BulkAction.RETRY: "Try again",
    BulkAction.PRIORITY: "Set the priority",
    BulkAction.REASSIGN: "Hand to another role",
}


class NotAsked(ValueError):
    """What was sent cannot be done; says why. `status` is that of the page."""

    status = HTTPStatus.BAD_REQUEST


class OthersMatch(NotAsked):
    """The query finds other activities than those that the person has seen counted."""

    status = HTTPStatus.CONFLICT


@dataclass(frozen=True, slots=True)
class Preview:
    """What a query finds now. `seen` stands for exactly these activities."""

    query: str
    count: int
    seen: str
    sample: Sequence[Activity]
    roles: Sequence[str]
    actions: Mapping[str, str]
    bands: Mapping[str, int]


def preview(tenant_id: UUID, query: str) -> Preview:
    """Count and show what would be dealt with. Raises `QueryError`, `NotAsked`."""
    with tenant_scope(tenant_id):
        rows = _find_activities(tenant_id, query)
        sample = rows.only("id", "name", "status", "agent_role", "human_role")
        ids = _ids(rows)
        return Preview(
            query=query,
            count=len(ids) if len(ids) <= MOST else rows.count(),
            seen=_digest(ids),
            sample=list(sample.order_by("-created_at", "-pk")[:SAMPLE]),
            roles=sorted(configuration.known_roles()),
            actions={str(action): words for action, words in WORDS.items()},
            bands=BANDS,
        )


def start(who: Principal, query: str, sent: Mapping[str, Any]) -> BulkJob:
    """Begin, if they still are those that the person has seen counted. Raises `QueryError`, `NotAsked`, and what bulk jobs refuse."""
    action, arguments = _read(sent)
    expected = str(sent.get("expected", ""))
    if not expected.isdecimal():
        raise NotAsked("Look at what the query finds first.")
    with tenant_scope(who.tenant_id):
        ids = _ids(_find_activities(who.tenant_id, query))
        if len(ids) == int(expected[:9]) and sent.get("seen") != _digest(ids):
            raise OthersMatch("As many match by now, but others than those that you have seen. Look again.")
        job = bulk_jobs.start(
            who.tenant_id,
            action,
            ids,
            expected=int(expected[:9]),
            filter={"query": query},
            arguments=arguments,
            actor=who.actor,
        )
        # In the trail, as every change by a person: the API's own call knows no queries.
        started = {"action": job.action, "count": job.total}
        audit.record_action(who, "bulk_job.started", about=("bulk-jobs", job.pk), detail=started)
    return job


def _ids(rows: QuerySet[Activity]) -> list[UUID]:
    """One more than a job may have says that they are too many."""
    return list(rows.order_by("pk").values_list("pk", flat=True)[: MOST + 1])


def _digest(ids: Sequence[UUID]) -> str:
    return hashlib.sha256(b"".join(each.bytes for each in ids)).hexdigest()[:DIGITS]


def _find_activities(tenant_id: UUID, query: str) -> QuerySet[Activity]:
    """A gate ends with what waits behind it, so it is never among them."""
    conditions = parse(query)
    if not conditions:
        raise NotAsked("Say first which activities: without a condition it would be all of them.")
    return found_by(tenant_id, conditions).exclude(link_kind=LinkKind.GATE)


def _read(sent: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    action, reason = str(sent.get("action", "")), str(sent.get("reason", "")).replace("\x00", "").strip()
    if action not in WORDS:
        raise NotAsked("Choose what is to be done.")
    if len(reason) > LONGEST_REASON:
        raise NotAsked(f"A reason has at most {LONGEST_REASON} characters.")
    if action == BulkAction.PRIORITY:
        return action, {"priority": _priority(str(sent.get("priority", "")))}
    if action == BulkAction.REASSIGN:
        return action, _assignee(str(sent.get("agent_role", "")), reason)
    return action, {"reason": reason} if reason and action == BulkAction.CANCEL else {}


def _priority(named: str) -> int:
    if named not in BANDS:
        raise NotAsked("Choose a priority.")
    return BANDS[named]


def _assignee(role: str, reason: str) -> dict[str, Any]:
    if not Agent.objects.filter(role=role, enabled=True).exists():
        raise NotAsked("Choose the role that takes over.")
    if not reason:
        raise NotAsked("Say why: who takes over reads it.")
    return {"assignee_type": "agent", "agent_role": role, "reason": reason}


@dataclass(frozen=True, slots=True)
class Progress:
    """How a job gets on, and what it could not do."""

    job: BulkJob
    troubles: Sequence[BulkItem]

    @property
    def is_running(self) -> bool:
        return self.job.status == BulkStatus.RUNNING

    @property
    def dealt_with(self) -> int:
        return self.job.done + self.job.skipped + self.job.failed

    @property
    def query(self) -> str:
        return str(self.job.filter.get("query", ""))

    @property
    def words(self) -> str:
        return WORDS[BulkAction(self.job.action)]


def progress(tenant_id: UUID, job_id: UUID) -> Progress | None:
    with tenant_scope(tenant_id):
        job = BulkJob.objects.for_tenant(tenant_id).filter(pk=job_id).first()
        if job is None:
            return None
        items = BulkItem.objects.for_tenant(tenant_id).filter(
            job_id=job_id, state__in=(ItemState.SKIPPED, ItemState.FAILED)
        )
        rows = items.select_related("activity").only(
            "state", "error", "activity__name", "job_id", "tenant_id"
        )
        return Progress(job, list(rows.order_by("pk")[:MOST_TROUBLES]))
