"""Pages of dead letters. Everybody sees them; operators retry or dismiss them after a preview."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Min, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse

from activities import dead_letters
from activities.models import DeadLetter
from activities.models.dead_letter import DeadLetterReason, DeadLetterState
from activities.states import LIVE, Status
from console.labels import in_words
from console.page import NOT_OFFERED, PageContext, Refused, id_or_404, number_in, page, text_in
from tenants import clock
from tenants.context import tenant_scope

MOST_PAGES = 1_000


@page("dead_letters")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Failures, grouped by similarity, those with most open ones first. Open failures only, unless `?state=all`."""
    only_open, role = request.GET.get("state") != "all", text_in(request.GET, "role", 63)
    with tenant_scope(visit.tenant_id):
        rows = DeadLetter.objects.for_tenant(visit.tenant_id)
        matching = rows.filter(agent_role=role) if role else rows
        grouped = dead_letters.groups(matching)
        if only_open:
            grouped = grouped.filter(open__gt=0)
        found = list(grouped.order_by("-open", "-count", "fingerprint", "reason")[: MOST_GROUPS + 1])
        context = {
            "groups": [
                Group(newest, each.count, each.open, each.first_at, each.last_at)
                for each, newest in dead_letters.with_examples(found[:MOST_GROUPS], rows)
            ],
            "history": _history(matching),
            "roles": list(rows.order_by("agent_role").values_list("agent_role", flat=True).distinct()),
            "has_more": len(found) > MOST_GROUPS,
            "only_open": only_open,
            "role": role,
        }
    return visit.render("console/dead_letters/every.html", context)


def _act(request: HttpRequest, visit: PageContext, fingerprint: str) -> dict[str, Any] | HttpResponse:
    """Perform the action and redirect, or return the preview of one."""
    action = request.POST.get("action", "")
    if action in COUNTS:
        return _preview(request, visit, fingerprint, COUNTS[action])
    if request.POST.get("letter"):
        path = f"/dead-letters/{id_or_404(request.POST['letter'])}/replay/"
        words = f"Retried: {visit.act('POST', path).data['name']}"
    elif action in DONE:
        before = request.POST.get("before", "")
        answer = _call(request, visit, fingerprint, action, before=before, dry_run=False)
        skipped = f", {answer['skipped']} skipped" if answer["skipped"] else ""
        words = f"{DONE[action]}: {answer['count']}{skipped}"
    else:
        raise Refused(NOT_OFFERED, status=400)
    return visit.redirect(words, "dead_letters_alike", fingerprint)


@page("dead_letters", act=_act)
def show_similar(request: HttpRequest, visit: PageContext, fingerprint: str) -> HttpResponse:
    """One group of failures, newest first. A POST previews or performs a replay or dismissal of all, or replays one."""
    number = number_in(request.GET.get("page", "1")) or 0
    if not 0 < number <= MOST_PAGES:
        raise Http404
    start = (number - 1) * LETTERS
    with tenant_scope(visit.tenant_id):
        rows = DeadLetter.objects.for_tenant(visit.tenant_id).filter(fingerprint=fingerprint)
        figures = rows.aggregate(
            count=Count("pk"),
            open=Count("pk", filter=Q(state=DeadLetterState.OPEN)),
            first_at=Min("created_at"),
            last_at=Max("created_at"),
        )
        if not figures["count"]:
            raise Http404
        newest_first = rows.select_related("activity").order_by("-created_at", "-pk")
        listed = list(newest_first[start : start + LETTERS + 1])
        newest = listed[0] if number == 1 and listed else rows.latest("created_at", "pk")
        history = _history(rows)
    context = {
        "group": Group(newest, **figures),
        "letters": listed[:LETTERS],
        "history": history,
        "number": number,
        "has_more": len(listed) > LETTERS,
        "counted": visit.acted,
        "sent": request.POST if request.method == "POST" else {},
    }
    return visit.render("console/dead_letters/alike.html", context)


# Actions on all open failures of a group. The preview records its time, and the action excludes failures after it. The API performs both.


COUNTS = {"count_replay": "replay", "count_dismiss": "dismiss"}
DONE = {"replay": "Retried", "dismiss": "Dismissed"}
NO_SPEED = "“Per second” must be a number above 0, or empty."


def _preview(request: HttpRequest, visit: PageContext, fingerprint: str, action: str) -> dict[str, Any]:
    """Preview an action: its numbers and arguments, and `before`, the time of the preview. Raises `Refused`."""
    before = clock.now().isoformat()
    answer = _call(request, visit, fingerprint, action, before=before, dry_run=True)
    return {
        "action": action,
        "count": answer["count"],
        "skipped": answer["skipped"],
        "lasting": in_words(answer["seconds"]) if answer.get("seconds") else "",
        "before": before,
        "per_second": request.POST.get("per_second", ""),
        "reason": request.POST.get("reason", ""),
    }


def _call(
    request: HttpRequest, visit: PageContext, fingerprint: str, action: str, *, before: str, dry_run: bool
) -> Mapping[str, Any]:
    chosen = {"fingerprint": fingerprint, "state": "open", "created_before": before}
    body: dict[str, Any] = {"filter": chosen, "dry_run": dry_run}
    if action == "replay" and (text := request.POST.get("per_second", "").strip()):
        body["per_second"] = _number(text)
    if action == "dismiss":
        body["reason"] = request.POST.get("reason", "")
    return visit.act("POST", f"/dead-letters/{action}/", body).data


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise Refused(NO_SPEED, status=400, field="per_second") from error


# Groups of similar failures, each with an example, and what was done about them.


MOST_GROUPS = 100
LETTERS = 50  # on one page
HISTORY = 20
HISTORY_OF = timedelta(days=30)
SUCCEEDED = (Status.DONE, Status.APPROVED)
REASONS = {
    DeadLetterReason.EXHAUSTED: "attempts used up",
    DeadLetterReason.PERMANENT: "permanent error",
    DeadLetterReason.STALLED: "worker or agent lost too often",
    DeadLetterReason.WAKE_BUDGET: "woken without progress",
    DeadLetterReason.RATE_LIMITED: "rate-limited (429) for too long",
}


@dataclass(frozen=True, slots=True)
class Group:
    """A group of similar failures, with the newest of them."""

    newest: DeadLetter
    count: int
    open: int
    first_at: datetime
    last_at: datetime

    @property
    def why(self) -> str:
        return REASONS[DeadLetterReason(self.newest.reason)]


@dataclass(frozen=True, slots=True)
class Resolution:
    """Failures that one person resolved at once. `succeeded`, `live` and `failed` count the present states of the work."""

    at: datetime
    by: str
    state: str
    count: int
    succeeded: int
    live: int
    failed: int
    fingerprint: str


def _history(rows: QuerySet[Any]) -> list[Resolution]:
    """Return what was resolved recently. Failures that were resolved at once share the time of their transaction."""
    status = "activity__status__in"
    recent = rows.filter(created_at__gte=clock.now() - HISTORY_OF, closed_at__isnull=False)
    resolved = recent.order_by().values_list("closed_at", "closed_by", "state").annotate(
        count=Count("pk"),
        succeeded=Count("pk", filter=Q(**{status: SUCCEEDED})),
        live=Count("pk", filter=Q(**{status: LIVE})),
        failed=Count("pk", filter=Q(**{status: (Status.FAILED, Status.NEEDS_REVIEW)})),
        fingerprint=Max("fingerprint"),
    )  # fmt: skip
    return [Resolution(*row) for row in resolved.order_by("-closed_at", "state")[:HISTORY]]
