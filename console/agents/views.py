"""The agents of the registry and their versions: looked at by everybody, brought into production by the platform's admins."""

from __future__ import annotations

from http import HTTPStatus

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from console import flash_messages, internal_api
from console.inbox.items import Refused
from console.page import ACTING, LOOKING, PageContext, page, shown

from . import queries

NOT_OFFERED = "This page does not offer that."
CHANGED = "It has changed since you looked: see what is in production now, and decide anew."
LONGEST_REVISION = 9  # digits


@page("agents")
def every(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """Every role, with how its runs went lately."""
    found = queries.agents(desk.tenant_id)
    return shown(request, desk, "console/agents/every.html", {"agents": found.rows, "since": found.since})


@page("agents", (*LOOKING, *ACTING))
def one(request: HttpRequest, desk: PageContext, role: str) -> HttpResponse:
    """One role with its deployments. A POST promotes one, rolls back, or has its endpoint looked at."""
    refusal: Refused | None = None
    if request.method == "POST":
        try:
            words = _act(request, desk, role)
            return flash_messages.done(request, desk, reverse("console:agent", args=[role]), words)
        except Refused as refused:
            refusal = refused
    found = queries.agent(desk.tenant_id, role)
    if found is None:
        raise Http404
    context = {"one": found, "may_deploy": desk.who.is_platform_admin, "refusal": refusal}
    return shown(request, desk, "console/agents/one.html", context, refusal.status if refusal else 200)


def _act(request: HttpRequest, desk: PageContext, role: str) -> str:
    deed, address, seen = request.POST.get("deed", ""), f"/agents/{role}", _revision(request)
    if deed == "roll_back":
        # Of two who see the same version fail, the second must not roll back what the first has brought back.
        reply = internal_api.call_api(request, desk.who, "POST", f"{address}/rollback/", version=seen)
        words = "Rolled back"
    elif deed == "check":
        reply = internal_api.call_api(request, desk.who, "POST", f"{address}/check/")
        words = "A worker looks at its endpoint within seconds"
    elif deed.startswith("promote:"):
        wanted = queries.deployment_id(deed.removeprefix("promote:"))
        path = f"{address}/deployments/{wanted}/promote/"
        reply = internal_api.call_api(request, desk.who, "POST", path, version=seen)
        words = "In production now"
    else:
        raise Refused(NOT_OFFERED, status=400)
    if reply.status == HTTPStatus.PRECONDITION_FAILED:
        raise Refused(CHANGED)
    if not reply.ok:
        raise flash_messages.refusal_of(reply)
    return words


def _revision(request: HttpRequest) -> int:
    """Which state of the role the page showed. Raises `Refused`."""
    text = request.POST.get("revision", "")
    if not text.isdecimal():
        raise Refused(NOT_OFFERED, status=400)
    return int(text[:LONGEST_REVISION])
