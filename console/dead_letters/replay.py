"""Trying failures again, or giving them up, from their page: first it is counted, and what was counted is what is done.

A count names the moment at which it was made; what fails later is not part of what is confirmed. All of it is done by the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest

from console import flash_messages, internal_api
from console.inbox.items import Refused
from console.labels import in_words
from tenants import clock
from tenants.principals import Principal

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


def act(request: HttpRequest, who: Principal, fingerprint: str) -> str:
    """Do what was counted; what was done, in words. Raises `Refused`."""
    deed = request.POST.get("deed", "")
    if deed not in ACTS:
        raise Refused(NOT_OFFERED, status=400)
    answer = _ask(request, who, fingerprint, deed, before=request.POST.get("before", ""), dry_run=False)
    skipped = f", {answer['skipped']} were dealt with before" if answer["skipped"] else ""
    return f"{ACTS[deed]}: {answer['count']}{skipped}"


def one(request: HttpRequest, who: Principal, letter_id: UUID) -> str:
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
