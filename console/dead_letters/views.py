"""Dead letters: looked at by everybody, tried again or given up by operators, after it was counted what that would do."""

from __future__ import annotations

from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from console import flash_messages
from console.inbox.items import Refused
from console.page import ACTING, LOOKING, PageContext, page, shown
from tenants.models import Role

from . import queries, replay
from .replay import Counted

MOST_PAGES = 1_000


@page("dead_letters")
def every(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """What failed alike, together. Open failures only, unless `?state=all`."""
    only_open = request.GET.get("state") != "all"
    role = request.GET.get("role", "").replace("\x00", "")[:63]
    found = queries.letters(desk.tenant_id, only_open=only_open, role=role)
    return shown(request, desk, "console/dead_letters/every.html", {"letters": found})


@page("dead_letters", (*LOOKING, *ACTING))
def alike(request: HttpRequest, desk: PageContext, fingerprint: str) -> HttpResponse:
    """What failed like this. A POST counts what a replay or a dismissal would do, does it, or tries one failure again."""
    refusal: Refused | None = None
    counted: Counted | None = None
    if request.method == "POST":
        try:
            counted = replay.count(request, desk.who, fingerprint) if _counts(request) else None
            if counted is None:
                words = _act(request, desk, fingerprint)
                return flash_messages.done(
                    request, desk, reverse("console:dead_letters_alike", args=[fingerprint]), words
                )
        except Refused as refused:
            refusal = refused
    return _alike(request, desk, fingerprint, counted, refusal)


def _counts(request: HttpRequest) -> bool:
    return request.POST.get("deed", "") in replay.COUNTS


def _act(request: HttpRequest, desk: PageContext, fingerprint: str) -> str:
    if request.POST.get("letter"):
        return replay.one(request, desk.who, _id_of(request))
    return replay.act(request, desk.who, fingerprint)


def _id_of(request: HttpRequest) -> UUID:
    try:
        return UUID(request.POST["letter"])
    except ValueError as error:
        raise Http404 from error


def _alike(
    request: HttpRequest,
    desk: PageContext,
    fingerprint: str,
    counted: Counted | None,
    refusal: Refused | None,
) -> HttpResponse:
    number = request.GET.get("page", "1")
    if not number.isdecimal() or not 0 < int(number[:6]) <= MOST_PAGES:
        raise Http404
    found = queries.alike(desk.tenant_id, fingerprint, page=int(number[:6]))
    if found is None:
        raise Http404
    context = {
        "alike": found,
        "may_act": desk.who.role.includes(Role.OPERATOR),
        "counted": counted,
        "refusal": refusal,
        "sent": request.POST if request.method == "POST" else {},
    }
    return shown(
        request, desk, "console/dead_letters/alike.html", context, refusal.status if refusal else 200
    )
