"""What operators do with one activity on its page, by the functions that the API calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from activities import backlog, cancellation, reassignment
from activities.exceptions import ActivityError, ActivityNotFound
from activities.models import Activity
from agents.models import Agent
from console.refusals import Refused
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal

LONGEST_REASON = 2_000
DONE = {"cancel": "It was cancelled.", "retry": "It starts anew.", "reassign": "It was handed on."}


def act(who: Principal, activity_id: UUID, sent: Mapping[str, Any]) -> Activity:
    """Cancel it, try it again or hand it on, if it still is as the page showed it. Returns it, or its heir. Raises `Refused`."""
    deed = str(sent.get("deed", ""))
    if deed not in DONE:
        raise Refused("Choose what is to be done.", status=400)
    if not who.role.includes(Role.OPERATOR):
        raise Refused("Only operators do this.", status=403)
    _refuse_changed(who, activity_id, str(sent.get("version", "")))
    reason = str(sent.get("reason", "")).replace("\x00", "").strip()[:LONGEST_REASON]
    try:
        if deed == "cancel":
            return cancellation.cancel(who.tenant_id, activity_id, actor=who.actor, reason=reason)
        if deed == "retry":
            return cancellation.retry(who.tenant_id, activity_id, actor=who.actor)
        return _reassign(who, activity_id, str(sent.get("agent_role", "")), reason)
    except ActivityNotFound as missing:
        raise Refused(str(missing), status=404) from missing
    except ActivityError as refusal:
        raise Refused(str(refusal), status=refusal.status) from refusal


def roles() -> list[str]:
    """Who can take over."""
    return list(Agent.objects.filter(enabled=True).order_by("role").values_list("role", flat=True))


def _reassign(who: Principal, activity_id: UUID, role: str, reason: str) -> Activity:
    if not reason:
        raise Refused("Say why: who takes over reads it.", status=400)
    with tenant_scope(who.tenant_id):
        if not Agent.objects.filter(role=role, enabled=True).exists():
            raise Refused("Choose the role that takes over.", status=400)
        backlog.make_room(who.tenant_id, [backlog.Newcomer(role)])
        return reassignment.reassign(
            who.tenant_id, activity_id, actor=who.actor, reason=reason, agent_role=role, human_role=None
        )


def _refuse_changed(who: Principal, activity_id: UUID, version: str) -> None:
    """A person judged by what the page showed."""
    with tenant_scope(who.tenant_id):
        rows = Activity.objects.for_tenant(who.tenant_id).filter(pk=activity_id)
        current = rows.values_list("version", "status").first()
    if current is None:
        raise Refused("There is no such activity.", status=404)
    if str(current[0]) != version:
        words = str(current[1]).replace("_", " ")
        raise Refused(f"It has changed since you looked: it is {words} now. Nothing was done.", status=409)
