"""Dead letters: looked at by everybody, tried again or given up by operators, after it was counted what that would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Max, Min, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from activities import dead_letters
from activities.models import DeadLetter
from activities.models.dead_letter import BurialReason, DeadLetterState
from activities.states import LIVE, Status
from console import internal_api
from console.labels import in_words
from console.page import (
    NOT_OFFERED,
    PageContext,
    Refused,
    id_or_404,
    page,
    redirect_with_success,
    refusal_of,
    render_page,
)
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal

MOST_PAGES = 1_000


@page("dead_letters")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What failed alike, together. Open failures only, unless `?state=all`."""
    only_open = request.GET.get("state") != "all"
    role = request.GET.get("role", "").replace("\x00", "")[:63]
    found = letters(visit.tenant_id, only_open=only_open, role=role)
    return render_page(request, visit, "console/dead_letters/every.html", {"letters": found})


def _act(request: HttpRequest, visit: PageContext, fingerprint: str) -> CountedAction | HttpResponse:
    if request.POST.get("deed", "") in COUNTS:
        return count(request, visit.who, fingerprint)
    if request.POST.get("letter"):
        words = act_on_one(request, visit.who, id_or_404(request.POST["letter"]))
    else:
        words = act_on_all(request, visit.who, fingerprint)
    return redirect_with_success(
        request, visit, reverse("console:dead_letters_alike", args=[fingerprint]), words
    )


@page("dead_letters", act=_act)
def show_similar(request: HttpRequest, visit: PageContext, fingerprint: str) -> HttpResponse:
    """What failed like this. A POST counts what a replay or a dismissal would do, does it, or tries one failure again."""
    number = request.GET.get("page", "1")
    if not number.isdecimal() or not 0 < int(number[:6]) <= MOST_PAGES:
        raise Http404
    found = find_similar(visit.tenant_id, fingerprint, page=int(number[:6]))
    if found is None:
        raise Http404
    context = {
        "alike": found,
        "may_act": visit.who.role.includes(Role.OPERATOR),
        "counted": visit.acted,
        "sent": request.POST if request.method == "POST" else {},
    }
    return render_page(request, visit, "console/dead_letters/alike.html", context)


# Trying failures again, or giving them up, from their page: first it is counted, and what was counted is what is done.
#
# A count names the moment at which it was made; what fails later is not part of what is confirmed. All of it is done by the API.


COUNTS = {"count_replay": "replay", "count_dismiss": "dismiss"}
ACTS = {"replay": "Started again", "dismiss": "Given up"}
NO_SPEED = "So many a second must be a number above 0, or empty."


@dataclass(frozen=True, slots=True)
class CountedAction:
    """What would be done. `before` is when it was counted, `per_second` and `reason` what goes with the action."""

    action: str
    count: int
    skipped: int
    lasting: str
    before: str
    per_second: str
    reason: str


def count(request: HttpRequest, who: Principal, fingerprint: str) -> CountedAction:
    """What the action would do now. Raises `Refused`."""
    action, before = COUNTS[request.POST["deed"]], clock.now().isoformat()
    answer = _ask(request, who, fingerprint, action, before=before, dry_run=True)
    return CountedAction(
        action=action,
        count=answer["count"],
        skipped=answer["skipped"],
        lasting=in_words(answer["seconds"]) if answer.get("seconds") else "",
        before=before,
        per_second=request.POST.get("per_second", ""),
        reason=request.POST.get("reason", ""),
    )


def act_on_all(request: HttpRequest, who: Principal, fingerprint: str) -> str:
    """Do what was counted; what was done, in words. Raises `Refused`."""
    action = request.POST.get("deed", "")
    if action not in ACTS:
        raise Refused(NOT_OFFERED, status=400)
    answer = _ask(request, who, fingerprint, action, before=request.POST.get("before", ""), dry_run=False)
    skipped = f", {answer['skipped']} were resolved before" if answer["skipped"] else ""
    return f"{ACTS[action]}: {answer['count']}{skipped}"


def act_on_one(request: HttpRequest, who: Principal, letter_id: UUID) -> str:
    """Try one failure again; what was done, in words. Raises `Refused`, `Http404`."""
    reply = internal_api.call_api(request, who, "POST", f"/dead-letters/{letter_id}/replay/")
    if not reply.ok:
        raise refusal_of(reply)
    return f"Started again: {reply.data['name']}"


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
        field = next(iter(reply.errors), "")
        raise Refused(refusal_of(reply).reason, status=reply.status, field=field)
    answer: Mapping[str, Any] = reply.data
    return answer


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise Refused(NO_SPEED, status=400, field="per_second") from error


# Work that failed for good, as a person sees it: what failed alike stands together, with an example and what was done about it.


MOST_GROUPS = 100
LETTERS = 50  # on one page
HISTORY = 20
HISTORY_OF = timedelta(days=30)
SUCCEEDED = (Status.DONE, Status.APPROVED)
REASONS = {
    BurialReason.EXHAUSTED: "attempts used up",
    BurialReason.PERMANENT: "would fail again",
    BurialReason.STALLED: "worker lost too often",
    BurialReason.WAKE_BUDGET: "woken without progress",
    BurialReason.RATE_LIMITED: "refused (429) for too long",
}


@dataclass(frozen=True, slots=True)
class Group:
    """What failed alike. `code` and `message` are the newest one's."""

    fingerprint: str
    role: str
    why: str
    count: int
    open: int
    first_at: datetime
    last_at: datetime
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Dealing:
    """What somebody did at once: so many were tried again or closed. `well`, `again` and `live` are what became of the work."""

    at: datetime
    by: str
    state: str
    count: int
    well: int
    live: int
    failed: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Letters:
    """The list of groups, and what was dealt with lately."""

    groups: Sequence[Group]
    history: Sequence[Dealing]
    roles: Sequence[str]
    has_more: bool
    only_open: bool
    role: str

    @property
    def open(self) -> int:
        return sum(group.open for group in self.groups)


@dataclass(frozen=True, slots=True)
class SimilarLetters:
    """The page of one fingerprint. `letters` are the newest of the page that was asked for."""

    group: Group
    letters: Sequence[DeadLetter]
    history: Sequence[Dealing]
    page: int
    has_more: bool
    cost: Any = field(default=None)


def letters(tenant_id: UUID, *, only_open: bool = True, role: str = "") -> Letters:
    """What failed, by fingerprint: what most failures are still open of first."""
    with tenant_scope(tenant_id):
        rows = DeadLetter.objects.for_tenant(tenant_id)
        narrowed = rows.filter(agent_role=role) if role else rows
        found = dead_letters.groups(narrowed)
        if only_open:
            found = found.filter(open__gt=0)
        page = list(found.order_by("-open", "-count", "fingerprint", "reason")[: MOST_GROUPS + 1])
        examples = rows.in_bulk([group.example for group in page[:MOST_GROUPS]])
        history = _history(narrowed)
        roles = list(rows.order_by("agent_role").values_list("agent_role", flat=True).distinct())
    groups = [_group(group, examples[UUID(group.example)]) for group in page[:MOST_GROUPS]]
    return Letters(groups, history, roles, len(page) > MOST_GROUPS, only_open, role)


def find_similar(tenant_id: UUID, fingerprint: str, *, page: int = 1) -> SimilarLetters | None:
    """What failed like this, newest first; None when nothing did."""
    with tenant_scope(tenant_id):
        rows = DeadLetter.objects.for_tenant(tenant_id).filter(fingerprint=fingerprint)
        figures = rows.aggregate(
            count=Count("pk"),
            open=Count("pk", filter=Q(state=DeadLetterState.OPEN)),
            first_at=Min("created_at"),
            last_at=Max("created_at"),
        )
        if not figures["count"]:
            return None
        start = (page - 1) * LETTERS
        found = list(
            rows.select_related("activity").order_by("-created_at", "-pk")[start : start + LETTERS + 1]
        )
        newest = found[0] if page == 1 and found else rows.latest("created_at", "pk")
        history = _history(rows)
    return SimilarLetters(
        _make_group(newest, **figures), found[:LETTERS], history, page, len(found) > LETTERS
    )


def _history(rows: QuerySet[Any]) -> list[Dealing]:
    """Everything that one person closed in one go has the same time: that of the transaction."""
    status = "activity__status__in"
    lately = rows.filter(created_at__gte=clock.now() - HISTORY_OF, closed_at__isnull=False)
    dealt = lately.order_by().values("closed_at", "closed_by", "state").annotate(
        count=Count("pk"),
        well=Count("pk", filter=Q(**{status: SUCCEEDED})),
        live=Count("pk", filter=Q(**{status: LIVE})),
        failed=Count("pk", filter=Q(**{status: (Status.FAILED, Status.NEEDS_REVIEW)})),
        fingerprint=Max("fingerprint"),
    )  # fmt: skip
    return [
        Dealing(
            row["closed_at"], row["closed_by"], row["state"], row["count"], row["well"], row["live"], row["failed"],
            row["fingerprint"],
        )
        for row in dealt.order_by("-closed_at", "state")[:HISTORY]
    ]  # fmt: skip


def _group(group: Any, example: DeadLetter) -> Group:
    return _make_group(
        example, count=group.count, open=group.open, first_at=group.first_at, last_at=group.last_at
    )


def _make_group(example: DeadLetter, **figures: Any) -> Group:
    return Group(
        fingerprint=example.fingerprint,
        role=example.agent_role,
        why=REASONS[BurialReason(example.reason)],
        code=str(example.error.get("code") or ""),
        message=str(example.error.get("message") or ""),
        **figures,
    )
