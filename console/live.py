"""Pages that keep themselves up to date: the stream of events that they follow, and the parts of themselves that they fetch again.

The stream is that of the API, for people who signed in.
"""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseBase
from django.views.decorators.http import require_GET

from console.page import acting
from tenants.api import event_stream
from tenants.events.connection_limits import TooManyStreams
from tenants.events.log import EventFilter
from tenants.events.stream import Subscriber

PARTS = "X-Live"  # the header in which a page names them
LAST_SEEN = "Last-Event-ID"
LONGEST_NUMBER = 18  # digits, below what a number in the log can have


def parts_wanted(request: HttpRequest) -> frozenset[str] | None:
    """The ids of the parts that the page fetches again, so that nothing else is read for it; None when somebody wants the whole page."""
    named = request.headers.get(PARTS)
    return None if named is None else frozenset(named.split())


@require_GET
def stream(request: HttpRequest) -> HttpResponseBase:
    """Server-sent events of the tenant named with ?tenant=, or of one activity or pipeline run of it.

    Goes on after `Last-Event-ID`, or after ?after= where a page opens the stream again. It ends with the session, the membership, or with a
    change of the role. Who did not sign in is told so in a way that a browser does not follow to the login page.
    """
    if not request.user.is_authenticated:
        return HttpResponse(status=401)
    who, _ = acting(request, first=False)
    if who is None:
        return HttpResponseBadRequest("Name a tenant.")
    try:
        event_filter = EventFilter(
            activity=_id(request, "activity"), pipeline_run=_id(request, "pipeline_run")
        )
        after = _number(request.headers.get(LAST_SEEN) or request.GET.get("after", ""))
    except ValueError:
        return HttpResponseBadRequest("That is no id.")
    try:
        return event_stream.follow(
            request.META, Subscriber(who, request.session.session_key), event_filter, after
        )
    except TooManyStreams as refusal:
        return HttpResponse(str(refusal), status=429, headers={"Retry-After": str(refusal.retry_after)})


def _id(request: HttpRequest, name: str) -> UUID | None:
    text = request.GET.get(name)
    return UUID(text) if text else None


def _number(text: str) -> int | None:
    if text and not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise ValueError(text)
    return int(text) if text else None
