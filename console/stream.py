"""What happens in a tenant, for pages that keep themselves up to date: the stream of the API, for who signed in."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseBase
from django.views.decorators.http import require_GET

from tenants.api import event_stream
from tenants.events.connection_limits import TooManyStreams
from tenants.events.log import EventFilter
from tenants.events.subscribers import Subscriber

from .page import acting

LAST_SEEN = "Last-Event-ID"
LONGEST_NUMBER = 18  # digits, below what a number in the log can have


@require_GET
def stream(request: HttpRequest) -> HttpResponseBase:
    """Server-sent events of the tenant named with ?tenant=, or of one activity or pipeline run of it.

    Goes on after `Last-Event-ID`, or after ?after= where a page opens the stream anew. It ends with the session, the membership, or with a
    change of the role. Who did not sign in is told so in a way that a browser does not follow to the login page.
    """
    if not request.user.is_authenticated:
        return HttpResponse(status=401)
    who, _ = acting(request, first=False)
    if who is None:
        return HttpResponseBadRequest("Name a tenant.")
    try:
        wanted = EventFilter(activity=_id(request, "activity"), pipeline_run=_id(request, "pipeline_run"))
        after = _number(request.headers.get(LAST_SEEN) or request.GET.get("after", ""))
    except ValueError:
        return HttpResponseBadRequest("That is no id.")
    try:
        return event_stream.follow(request.META, Subscriber(who, request.session.session_key), wanted, after)
    except TooManyStreams as refusal:
        return HttpResponse(str(refusal), status=429, headers={"Retry-After": str(refusal.retry_after)})


def _id(request: HttpRequest, name: str) -> UUID | None:
    given = request.GET.get(name)
    return UUID(given) if given else None


def _number(text: str) -> int | None:
    if text and not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise ValueError(text)
    return int(text) if text else None
