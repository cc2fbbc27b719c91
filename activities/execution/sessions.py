"""The conversation of a run: what its agent tells about it is kept at once, so that anyone who runs next continues it.

A run may name a conversation as often as it likes; only the first time is news. Each function runs in a `tenant_scope` of its own or of
the caller, and locks the run and then its session, after everything else.
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
    """The conversation that a claimed run continues, or "". If the instructions of its agent have changed since, the conversation ends
    here.
    """
    if claimed.session is None:
        return ""
    session_id: str = claimed.session["id"]
    if claimed.session["fits"]:
        return session_id
    facts = (claimed.tenant_id, _matter_of(claimed), claimed.agent_role, session_id)
    with tenant_scope(claimed.tenant_id):
        sessions.end(*facts, EndReason.INSTRUCTIONS_CHANGED)
    return ""


def saw(run: RunToken, session_id: str | None) -> None:
    """Record the conversation that the agent has named, even if it has done nothing yet. A run that was taken over can name none."""
    if not session_id:
        return
    with tenant_scope(run.tenant_id):
        if _is_news(run, session_id):
            about = Activity.objects.for_tenant(run.tenant_id).only(
                "mailbox_id", "deliverable_id", "agent_role"
            )
            _begin(run, about.get(pk=run.activity_id), session_id)


def note_used(run: RunToken, activity: Any, session_id: str | None) -> None:
    """Record that the agent has worked in this conversation. `activity` is a model or a `transitions.Moved`."""
    if not session_id:
        return
    if _is_news(run, session_id):
        _begin(run, activity, session_id)
    elif matter := _matter_of(activity):
        sessions.continue_session(
            run.tenant_id, matter, activity.agent_role, session_id, briefing=run.briefing
        )


def was_given(run: RunToken) -> bool:
    """Whether the run got a conversation to continue, and has not begun another one itself.

    Otherwise an agent that begins a conversation in every run and then does not know it would be started again without end.
    """
    if not run.session_id:
        return False
    runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(pk=run.run_id)
    return runs.filter(session_id=run.session_id).exists()


def disown(run: RunToken, activity: Any) -> None:
    """The agent does not know the conversation that it was given."""
    matter = _matter_of(activity)
    sessions.end(run.tenant_id, matter, activity.agent_role, run.session_id, EndReason.INVALID)


def _is_news(run: RunToken, session_id: str) -> bool:
    """Note it with the run, and tell whether it had not been noted there. Of a run that was taken over, nothing is news."""
    runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(
        pk=run.run_id, fence=run.fence, status__in=(RunStatus.RUNNING, RunStatus.COMPLETED)
    )
    return bool(runs.exclude(session_id=session_id).update(session_id=session_id))


def _begin(run: RunToken, activity: Any, session_id: str) -> None:
    """It is the live conversation of its mailbox or deliverable from now on, if there is one."""
    if matter := _matter_of(activity):
        sessions.begin(run.tenant_id, matter, activity.agent_role, session_id, briefing=run.briefing)


def _matter_of(activity: Any) -> Any:
    """What the conversation is about: the mailbox, or else the deliverable; None when it is about nothing that comes again."""
    return activity.mailbox_id or activity.deliverable_id
