"""What an agent was told in one of its runs, and what it made of it, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.http import Http404

from activities.api.run_callbacks import job_again
from activities.exceptions import OutputUnavailable
from activities.models import Activity, ActivityRun
from activities.run_tokens import RunToken
from activities.states import RunStatus, Status
from agents.exceptions import AgentError
from console.inbox.detail import Reader, Source, Text
from console.labels import named
from tenants.context import tenant_scope

LONGEST_PROMPT = 300_000  # characters that are shown


@dataclass(frozen=True, slots=True)
class Texts:
    """`told` and `made` stand side by side."""

    activity: Activity
    run: ActivityRun | None
    told: Sequence[Text]
    made: Sequence[Text]


def texts(tenant_id: UUID, activity_id: UUID, run_id: str = "") -> Texts:
    """Of the named run, else of the one whose output counts, else of the last one. Raises `Http404`. Not inside a transaction."""
    with tenant_scope(tenant_id):
        activity = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
        if activity is None:
            raise Http404
        run = _run(tenant_id, activity, run_id)
        edited = _was_edited(tenant_id, activity)
    reader = Reader(tenant_id)
    if run is None:
        made = [Source("What was handed in", output_id=activity.output_ref)] if activity.output_ref else []
        given = activity.input or {}
        told = [
            Source("What is to be done", activity.description or None),
            Source("Input", given.get("content"), given.get("data")),
            Source("Parameters", data=activity.params or None),
        ]
        return Texts(activity, None, reader.texts(told), reader.texts(made))
    made = (
        [Source("Output", output_id=run.pk)]
        if run.status == RunStatus.COMPLETED and not run.ended_by_tool
        else []
    )
    if edited:
        made.append(
            Source(f"As {named(activity.decided_by)} edited and approved it", output_id=activity.output_ref)
        )
    return Texts(activity, run, [_prompt(tenant_id, run)], reader.texts(made))


def _run(tenant_id: UUID, activity: Activity, run_id: str) -> ActivityRun | None:
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity.pk)
    if run_id:
        try:
            named: ActivityRun | None = rows.filter(pk=UUID(run_id)).first()
        except ValueError:
            named = None
        if named is None:
            raise Http404
        return named
    runs = list(rows.order_by("-started_at", "-pk"))
    return next((run for run in runs if run.pk == activity.output_ref), runs[0] if runs else None)


def _was_edited(tenant_id: UUID, activity: Activity) -> bool:
    """Whether the output that counts is that of no run: a person has edited it before approving."""
    if activity.assignee_type != "agent" or activity.status != Status.APPROVED or activity.output_ref is None:
        return False
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity.pk)
    return not runs.filter(pk=activity.output_ref).exists()


def _prompt(tenant_id: UUID, run: ActivityRun) -> Text:
    """The prompt is not kept: it is built anew from what the run was built from."""
    token = RunToken(tenant_id, run.activity_id, run.pk, run.fence)
    try:
        told = str(job_again(token, run)["prompt"])
    except OutputUnavailable:
        return Text("Prompt", remark="The store of outputs does not answer. Load the page again in a moment.")
    except AgentError as error:
        return Text("Prompt", remark=f"It cannot be built any more: {error}")
    cut = len(told) - LONGEST_PROMPT
    return Text(
        "Prompt",
        plain=told[:LONGEST_PROMPT],
        remark=f"{cut} further characters are left out." if cut > 0 else "",
    )
