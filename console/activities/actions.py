"""What operators do with one activity on its page, through the API's own views."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest

from agents import configuration
from console.flash_messages import refusal_of
from console.inbox.items import Refused
from console.internal_api import call_api
from tenants.principals import Principal

LONGEST_VERSION = 9  # digits
DONE = {"cancel": "It was cancelled.", "retry": "It starts anew.", "reassign": "It was handed on."}
CHANGED = "It has changed since you looked. Look at it as it is now; nothing was done."


def act(request: HttpRequest, who: Principal, activity_id: UUID) -> tuple[UUID, str]:
    """Cancel it, try it again or hand it on, if it still is as the page showed it; its id or its successor's, and what was done.

    Raises `Refused`, `Http404`.
    """
    sent = request.POST
    deed, version = sent.get("deed", ""), sent.get("version", "")
    if deed not in DONE or not version.isdecimal():
        raise Refused("Choose what is to be done.", status=HTTPStatus.BAD_REQUEST)
    body: dict[str, Any] = {"reason": sent["reason"]} if deed != "retry" and "reason" in sent else {}
    if deed == "reassign":
        body |= {"assignee_type": "agent", "agent_role": sent.get("agent_role", "")}
    path = f"/activities/{activity_id}/{deed}/"
    reply = call_api(request, who, "POST", path, body, version=int(version[:LONGEST_VERSION]))
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    if reply.status == HTTPStatus.PRECONDITION_FAILED:
        raise Refused(CHANGED, status=HTTPStatus.CONFLICT)
    if not reply.ok:
        raise refusal_of(reply)
    return UUID(str(reply.data["id"])), DONE[deed]


def roles() -> list[str]:
    """Who can take over."""
    return sorted(configuration.known_roles())
