"""Sessions of runs: records the session that an agent reports as soon as it is known, so that the next run can continue it.

A run may report its session repeatedly; only the first report has an effect. Each function runs in a `tenant_scope` of its own or of the
caller. It locks the run and then its session, after all other rows.
"""

from __future__ import annotations

from typing import Any

from activities.models import Activity, ActivityRun
from activities.run_tokens import RunToken
from activities.states import RunStatus
from agents import sessions
from agents.models import EndReason
from tenants.context import tenant_scope


def resume(claimed: Any) -> str:
    """Return the session that a claimed run continues, or "". Ends the session if the agent's instructions have changed since."""
    if claimed.session is None:
        return ""
    session_id: str = claimed.session["id"]
    if claimed.session["fits"]:
        return session_id
    facts = (claimed.tenant_id, _owner_of(claimed), claimed.agent_role, session_id)
    with tenant_scope(claimed.tenant_id):
        sessions.end(*facts, EndReason.INSTRUCTIONS_CHANGED)
    return ""


def saw(run: RunToken, session_id: str | None) -> None:
    """Record the session that the agent reports, even before it has done any work. Ignored if the run was superseded."""
    if not session_id:
        return
    with tenant_scope(run.tenant_id):
        if _is_news(run, session_id):
            activities = Activity.objects.for_tenant(run.tenant_id).only(
                "mailbox_id", "deliverable_id", "agent_role"
            )
            _begin(run, activities.get(pk=run.activity_id), session_id)


def note_used(run: RunToken, activity: Any, session_id: str | None) -> None:
    """Record that the agent has worked in this session. `activity`: a model or a `transitions.Moved`."""
    if not session_id:
        return
    if _is_news(run, session_id):
        _begin(run, activity, session_id)
    elif owner := _owner_of(activity):
        sessions.continue_session(
            run.tenant_id, owner, activity.agent_role, session_id, briefing=run.briefing
        )


def was_given(run: RunToken) -> bool:
    """Whether the run was started with a session, and has not begun another one itself.

    Without the second condition, an agent that begins a session in every run and then does not know it would be restarted forever.
    """
    if not run.session_id:
        return False
    runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(pk=run.run_id)
    return runs.filter(session_id=run.session_id).exists()


def disown(run: RunToken, activity: Any) -> None:
    """End the session that the agent does not know."""
    owner = _owner_of(activity)
    sessions.end(run.tenant_id, owner, activity.agent_role, run.session_id, EndReason.INVALID)


def _is_news(run: RunToken, session_id: str) -> bool:
    """Store the session in the run. Returns False if it was stored before, or if the run was superseded."""
    runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(
        pk=run.run_id, fence=run.fence, status__in=(RunStatus.RUNNING, RunStatus.COMPLETED)
    )
    return bool(runs.exclude(session_id=session_id).update(session_id=session_id))


def _begin(run: RunToken, activity: Any, session_id: str) -> None:
    """Make it the live session of the activity's mailbox or deliverable, if there is one."""
    if owner := _owner_of(activity):
        sessions.begin(run.tenant_id, owner, activity.agent_role, session_id, briefing=run.briefing)


def _owner_of(activity: Any) -> Any:
    """Return the subject of the session: the mailbox, else the deliverable, else None."""
    return activity.mailbox_id or activity.deliverable_id
