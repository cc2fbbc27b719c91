"""The job of a run, told again: to an agent that has lost it, exactly as long as the run is live.

It is built anew from the same facts; only the random marker of the prompt's blocks is another.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Q, QuerySet

from activities import requests
from activities.models import Activity, ActivityRun, Wake
from activities.requests import Attempt
from activities.run_tokens import RunToken
from activities.states import WakeState
from agents import configuration
from agents.exceptions import PermanentAgentError
from agents.job import job_of
from tenants.context import tenant_scope


def job_again(token: RunToken, run: ActivityRun) -> dict[str, Any]:
    """The body of the call that started this run. Not inside a transaction: its input may have to be read from MongoDB.

    Raises `OutputUnavailable` when the store of outputs does not answer, and `AgentError` when what the run began with is not on record
    any more.
    """
    with tenant_scope(token.tenant_id):
        activity = Activity.objects.for_tenant(token.tenant_id).get(pk=token.activity_id)
        agent_role = activity.agent_role or ""
        role = configuration.settings_for(token.tenant_id, agent_role)
        role = requests.role_for(role, activity.agent_options)
        attempt = Attempt(
            token=token,
            number=run.attempt,
            wakes=_wakes_of(run) or _given_back(run),
            role=role,
            knowledge=requests.knowledge_of(token.tenant_id, agent_role, role),
            timeout_seconds=run.timeout_seconds,
            deadline=(run.accepted_at or run.started_at) + timedelta(seconds=run.timeout_seconds),
        )
    if not attempt.wakes:
        raise PermanentAgentError("What woke it is not on record any more.", code="wakes_forgotten")
    request = requests.build(activity, attempt, requests.fetch(activity, attempt.wakes))
    return job_of(request) | {"version": run.agent_version or None}


def _wakes_of(run: ActivityRun) -> list[dict[str, Any]]:
    return _shown(_wakes(run).filter(run_id=run.pk))


def _given_back(run: ActivityRun) -> list[dict[str, Any]]:
    """A run that ended without a result has given its wakes back: they wait, or are with a later one."""
    later = ActivityRun.objects.for_tenant(run.tenant_id).filter(
        activity_id=run.activity_id, fence__gt=run.fence
    )
    waits = Q(run_id=None, state=WakeState.PENDING)
    known = _wakes(run).filter(created_at__lte=run.started_at)
    return _shown(known.filter(waits | Q(run_id__in=later.values("pk"))))


def _wakes(run: ActivityRun) -> QuerySet[Any]:
    rows: QuerySet[Any] = Wake.objects.for_tenant(run.tenant_id).filter(activity_id=run.activity_id)
    return rows


def _shown(wakes: QuerySet[Any]) -> list[dict[str, Any]]:
    return [{"id": wake.pk, "reason": wake.reason, "payload": wake.payload} for wake in wakes.order_by("pk")]
