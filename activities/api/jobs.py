"""The job of a run, told again: to an agent that has lost it, exactly as long as the run is live.

The prompt is built anew from the same facts; only the random marker of its blocks is another.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from activities import outputs, prompt, run_tokens
from activities.models import Activity, ActivityRun, Wake
from activities.run_tokens import RunToken
from agents import configuration, sessions
from agents.contracts import AgentRequest
from agents.job import job_of
from tenants.context import tenant_scope


def job_again(token: RunToken, run: ActivityRun) -> dict[str, Any]:
    """The body of the call that started this run. Not inside a transaction: its input may have to be read from MongoDB.

    Raises `OutputUnavailable` when the store of outputs does not answer.
    """
    with tenant_scope(token.tenant_id):
        activity = Activity.objects.for_tenant(token.tenant_id).get(pk=token.activity_id)
        taken = Wake.objects.for_tenant(token.tenant_id).filter(activity_id=activity.pk, run_id=run.pk)
        wakes = list(taken.order_by("pk"))
        settings = configuration.settings_for(token.tenant_id, activity.agent_role or "")
        session = sessions.find(token.tenant_id, activity.deliverable_id, activity.agent_role or "")
    return job_of(_request(token, activity, run, wakes, settings, session)) | {
        "version": run.agent_version or None
    }


def _request(
    token: RunToken,
    activity: Activity,
    run: ActivityRun,
    wakes: list[Wake],
    role: configuration.RoleSettings,
    session: str | None,
) -> AgentRequest:
    context = dict(wakes[-1].payload) if wakes else {}
    given = _input(activity)
    if reference := context.get("rejection_ref"):
        rejected = outputs.read(token.tenant_id, UUID(str(reference)))
        context["rejected_output"] = rejected.content if rejected else None
    return AgentRequest(
        tenant_id=token.tenant_id, activity_id=activity.pk, run_id=run.pk,
        idempotency_key=str(wakes[0].pk if wakes else run.pk), agent_role=activity.agent_role or "", attempt=run.attempt,
        prompt=prompt.build(
            reason=run.wake_reason, name=activity.name, description=activity.description, params=activity.params,
            input_content=(given or {}).get("content"), context=context,
        ),
        settings=role.adapter, callback=run_tokens.issue(token), timeout_seconds=run.timeout_seconds,
        deadline=(run.accepted_at or run.started_at) + timedelta(seconds=run.timeout_seconds), name=activity.name,
        deliverable_id=activity.deliverable_id, pipeline_step=activity.step, priority=activity.priority, params=activity.params,
        input=given, wakes=tuple({"reason": wake.reason, **wake.payload} for wake in wakes), wake_reason=run.wake_reason,
        wake_context=context, session_id=session,
    )  # fmt: skip


def _input(activity: Activity) -> dict[str, Any] | None:
    inline = activity.input or {}
    found: dict[str, Any] | None = None
    if activity.input_ref is not None:
        found = _output(activity.tenant_id, activity.input_ref)
    elif inline:
        found = {"ref": None, "content": inline.get("content"), "data": inline.get("data")}
    if references := inline.get("refs"):
        steps = {step: _output(activity.tenant_id, UUID(reference)) for step, reference in references.items()}
        found = {**(found or {"ref": None, "content": None, "data": None}), "steps": steps}
    return found


def _output(tenant_id: UUID, reference: UUID) -> dict[str, Any]:
    found = outputs.read(tenant_id, reference)
    return {
        "ref": str(reference),
        "content": found.content if found else None,
        "data": found.data if found else None,
    }
