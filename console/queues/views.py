"""The queues of a tenant, and one of them: looked at by everybody, stopped and let go on by those who may."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from console import flash_messages, internal_api
from console.inbox.items import Refused
from console.page import ACTING, LOOKING, PageContext, page, shown
from tenants import pausing
from tenants.models import Role

from . import queries

BOTH = (*LOOKING, *ACTING)
DEEDS = {"pause": "Paused", "resume": "Goes on"}
NOT_OFFERED = "This page does not offer that."


@page("queues", BOTH)
def every(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """Every role, the longest queue first. A POST stops everything of the tenant, or lets it go on."""
    if request.method == "POST":
        refusal = _switch_tenant(request, desk)
        if refusal is None:
            words = f"{DEEDS[request.POST['deed']]}: all work of {desk.who.tenant}"
            return flash_messages.done(request, desk, reverse("console:queues"), words)
        return _every(request, desk, refusal)
    return _every(request, desk)


@page("queues", BOTH)
def one(request: HttpRequest, desk: PageContext, role: str) -> HttpResponse:
    """One role with the head of its line. A POST stops it for the tenant, or lets it go on."""
    refusal: Refused | None = None
    if request.method == "POST":
        deed = request.POST.get("deed", "")
        if deed not in DEEDS:
            refusal = Refused(NOT_OFFERED, status=400)
        else:
            reply = internal_api.call_api(request, desk.who, "POST", f"/queues/{role}/{deed}/")
            if reply.ok:
                words = f"{DEEDS[deed]}: {role}. In force within two seconds"
                return flash_messages.done(request, desk, reverse("console:queue", args=[role]), words)
            refusal = flash_messages.refusal_of(reply)
    found = queries.one_queue(desk.tenant_id, role)
    if found is None:
        raise Http404
    context = {"queue": found, "may_switch": desk.who.role.includes(Role.OPERATOR), "refusal": refusal}
    return shown(request, desk, "console/queues/one.html", context, refusal.status if refusal else 200)


def _every(request: HttpRequest, desk: PageContext, refusal: Refused | None = None) -> HttpResponse:
    context = {
        "queues": queries.queues(desk.tenant_id),
        "may_switch": desk.who.role.includes(Role.ADMIN),
        "refusal": refusal,
    }
    return shown(request, desk, "console/queues/every.html", context, refusal.status if refusal else 200)


def _switch_tenant(request: HttpRequest, desk: PageContext) -> Refused | None:
    deed = request.POST.get("deed", "")
    if deed not in DEEDS:
        return Refused(NOT_OFFERED, status=400)
    try:
        pausing.switch(desk.who, paused=deed == "pause")
    except pausing.PausingRefused as refusal:
        return Refused(str(refusal), status=refusal.status)
    return None
