"""The job of a run, told again: to an agent that has lost it, exactly as long as the run is live.

It is built anew from the same facts; only the random marker of the prompt's blocks is another.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from activities import requests
from activities.models import Activity, ActivityRun, Wake
from activities.requests import Attempt
from activities.run_tokens import RunToken
from agents import configuration
from agents.job import job_of
from tenants.context import tenant_scope


def job_again(token: RunToken, run: ActivityRun) -> dict[str, Any]:
    """The body of the call that started this run. Not inside a transaction: its input may have to be read from MongoDB.

    Raises `OutputUnavailable` when the store of outputs does not answer.
    """
    with tenant_scope(token.tenant_id):
        activity = Activity.objects.for_tenant(token.tenant_id).get(pk=token.activity_id)
        agent_role = activity.agent_role or ""
        role = configuration.settings_for(token.tenant_id, agent_role)
        role = requests.role_for(role, activity.agent_options)
        attempt = Attempt(
            token=token,
            number=run.attempt,
            wakes=_wakes_of(run),
            role=role,
            knowledge=requests.knowledge_of(token.tenant_id, agent_role, role),
            timeout_seconds=run.timeout_seconds,
            deadline=(run.accepted_at or run.started_at) + timedelta(seconds=run.timeout_seconds),
        )
    request = requests.build(activity, attempt, requests.fetch(activity, attempt.wakes))
    return job_of(request) | {"version": run.agent_version or None}


def _wakes_of(run: ActivityRun) -> list[dict[str, Any]]:
    taken = Wake.objects.for_tenant(run.tenant_id).filter(activity_id=run.activity_id, run_id=run.pk)
    return [{"id": wake.pk, "reason": wake.reason, "payload": wake.payload} for wake in taken.order_by("pk")]
