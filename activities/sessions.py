"""Sessions: an agent's conversation for (tenant, deliverable or mailbox, role), which revisions and wakes continue.

At most one is live. It ends for a recorded reason: its agent's instructions have changed, the agent does not know it any more, or
has begun another one. A session is recorded as soon as the agent reports it, so that the next run can continue it. A run may report its
session repeatedly; only the first report has an effect.

`resume` and `saw` open a `tenant_scope`; the others must run in one. All are idempotent, and lock the run and then its session, after all
other rows.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from activities.models import Activity, ActivityRun
from activities.run_tokens import RunToken
from activities.states import RunStatus
from agents.models import AgentSession, EndReason
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.sql import Statement

logger = logging.getLogger(__name__)

_BEGIN = Statement.load(Path(__file__).parent / "sql", "begin_session")


def resume(claimed: Any) -> str:
    """Return the session that a claimed run continues, or "". Ends the session if the agent's instructions have changed since."""
    if claimed.session is None:
        return ""
    session_id: str = claimed.session["id"]
    if claimed.session["fits"]:
        return session_id
    with tenant_scope(claimed.tenant_id):
        end(
            claimed.tenant_id,
            _owner_of(claimed),
            claimed.agent_role,
            session_id,
            EndReason.INSTRUCTIONS_CHANGED,
        )
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
            _begin_of(run, activities.get(pk=run.activity_id), session_id)


def note_used(run: RunToken, activity: Any, session_id: str | None) -> None:
    """Record that the agent has worked in this session. `activity`: a model or a `transitions.Moved`.

    A session that has ended meanwhile stays ended.
    """
    if not session_id:
        return
    if _is_news(run, session_id):
        _begin_of(run, activity, session_id)
    elif owner := _owner_of(activity):
        continued = _live(run.tenant_id, owner, activity.agent_role).filter(external_session_id=session_id)
        changes = {"briefing": run.briefing} if run.briefing else {}
        continued.update(updated_at=Now(), **changes)


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
    end(run.tenant_id, _owner_of(activity), activity.agent_role, run.session_id, EndReason.INVALID)


def begin(tenant_id: UUID, owner: UUID, role: str, external_id: str, *, briefing: str = "") -> None:
    """Make this session the live one of a deliverable or mailbox. A session that was live before ends as replaced."""
    facts = {
        "id": uuid7(), "tenant": tenant_id, "deliverable": owner, "role": role, "external_id": external_id,
        "briefing": briefing,
    }  # fmt: skip
    if _BEGIN.run(facts):
        return
    # The refused insert has locked the other session's row, so no third session can begin between these two statements.
    _end(_live(tenant_id, owner, role), EndReason.REPLACED)
    _BEGIN.run(facts)


def end(tenant_id: UUID, owner: UUID, role: str, external_id: str, reason: EndReason) -> bool:
    """End this session. Return False if it has ended before."""
    ended = _end(_live(tenant_id, owner, role).filter(external_session_id=external_id), reason)
    if ended:
        facts = {"action": "session_ended", "tenant": str(tenant_id), "role": role, "reason": reason.value}
        logger.info("Session ended", extra=facts)
    return ended


def _is_news(run: RunToken, session_id: str) -> bool:
    """Store the session in the run. Returns False if it was stored before, or if the run was superseded."""
    runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(
        pk=run.run_id, fence=run.fence, status__in=(RunStatus.RUNNING, RunStatus.COMPLETED)
    )
    return bool(runs.exclude(session_id=session_id).update(session_id=session_id))


def _begin_of(run: RunToken, activity: Any, session_id: str) -> None:
    """Make it the live session of the activity's mailbox or deliverable, if there is one."""
    if owner := _owner_of(activity):
        begin(run.tenant_id, owner, activity.agent_role, session_id, briefing=run.briefing)


def _owner_of(activity: Any) -> Any:
    """Return the subject of the session: the mailbox, else the deliverable, else None."""
    return activity.mailbox_id or activity.deliverable_id


def _live(tenant_id: UUID, owner: UUID, role: str) -> QuerySet[Any]:
    return AgentSession.objects.for_tenant(tenant_id).filter(
        deliverable_id=owner, agent_id=role, ended_at=None
    )


def _end(rows: QuerySet[Any], reason: EndReason) -> bool:
    return bool(rows.update(ended_at=Now(), updated_at=Now(), end_reason=reason))
