"""Dead letters: looked at by everybody, tried again or given up by operators, after it was counted what that would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from console import flash_messages, internal_api
from console.dead_letters import queries
from console.inbox.items import Refused
from console.labels import in_words
from console.page import ACTING, LOOKING, PageContext, page, shown
from tenants import clock
from tenants.models import Role
from tenants.principals import Principal

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
            counted = count(request, desk.who, fingerprint) if _counts(request) else None
            if counted is None:
                words = _act(request, desk, fingerprint)
                return flash_messages.done(
                    request, desk, reverse("console:dead_letters_alike", args=[fingerprint]), words
                )
        except Refused as refused:
            refusal = refused
    return _alike(request, desk, fingerprint, counted, refusal)


def _counts(request: HttpRequest) -> bool:
    return request.POST.get("deed", "") in COUNTS


def _act(request: HttpRequest, desk: PageContext, fingerprint: str) -> str:
    if request.POST.get("letter"):
        return act_on_one(request, desk.who, _id_of(request))
    return act_on_all(request, desk.who, fingerprint)


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


# Trying failures again, or giving them up, from their page: first it is counted, and what was counted is what is done.
#
# A count names the moment at which it was made; what fails later is not part of what is confirmed. All of it is done by the API.


COUNTS = {"count_replay": "replay", "count_dismiss": "dismiss"}
ACTS = {"replay": "Started anew", "dismiss": "Given up"}
NOT_OFFERED = "This page does not offer that."
NO_SPEED = "So many a second must be a number above 0, or empty."


@dataclass(frozen=True, slots=True)
class Counted:
    """What would be done. `before` is when it was counted, `per_second` and `reason` what goes with the deed."""

    deed: str
    count: int
    skipped: int
    lasting: str
    before: str
    per_second: str
    reason: str


def count(request: HttpRequest, who: Principal, fingerprint: str) -> Counted:
    """What the deed would do now. Raises `Refused`."""
    deed, before = COUNTS[request.POST["deed"]], clock.now().isoformat()
    answer = _ask(request, who, fingerprint, deed, before=before, dry_run=True)
    return Counted(
        deed=deed,
        count=answer["count"],
        skipped=answer["skipped"],
        lasting=in_words(answer["seconds"]) if answer.get("seconds") else "",
        before=before,
        per_second=request.POST.get("per_second", ""),
        reason=request.POST.get("reason", ""),
    )


def act_on_all(request: HttpRequest, who: Principal, fingerprint: str) -> str:
    """Do what was counted; what was done, in words. Raises `Refused`."""
    deed = request.POST.get("deed", "")
    if deed not in ACTS:
        raise Refused(NOT_OFFERED, status=400)
    answer = _ask(request, who, fingerprint, deed, before=request.POST.get("before", ""), dry_run=False)
    skipped = f", {answer['skipped']} were dealt with before" if answer["skipped"] else ""
    return f"{ACTS[deed]}: {answer['count']}{skipped}"


def act_on_one(request: HttpRequest, who: Principal, letter_id: UUID) -> str:
    """Try one failure again; what was done, in words. Raises `Refused`, `Http404`."""
    reply = internal_api.call_api(request, who, "POST", f"/dead-letters/{letter_id}/replay/")
    if not reply.ok:
        raise flash_messages.refusal_of(reply)
    return f"Started anew: {reply.data['name']}"


def _ask(
    request: HttpRequest, who: Principal, fingerprint: str, deed: str, *, before: str, dry_run: bool
) -> Mapping[str, Any]:
    chosen = {"fingerprint": fingerprint, "state": "open", "created_before": before}
    body: dict[str, Any] = {"filter": chosen, "dry_run": dry_run}
    if deed == "replay" and (text := request.POST.get("per_second", "").strip()):
        body["per_second"] = _number(text)
    if deed == "dismiss":
        body["reason"] = request.POST.get("reason", "")
    reply = internal_api.call_api(request, who, "POST", f"/dead-letters/{deed}/", body)
    if not reply.ok:
        field = next(iter(reply.faults), "")
        raise Refused(flash_messages.refusal_of(reply).reason, status=reply.status, field=field)
    answer: Mapping[str, Any] = reply.data
    return answer


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise Refused(NO_SPEED, status=400, field="per_second") from error
