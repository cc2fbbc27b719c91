"""Live updates: the event stream that pages follow, and the parts of a page that they request again.

The stream is the API's, for people who are signed in.
"""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseBase
from django.views.decorators.http import require_GET

from console.page import acting, number_in
from tenants.api import event_stream
from tenants.events.connection_limits import TooManyStreams
from tenants.events.log import EventFilter
from tenants.events.stream import Subscriber

PARTS = "X-Live"  # the header in which a page names the parts that it requests again
LAST_SEEN = "Last-Event-ID"
LONGEST_NUMBER = 18  # digits, which fit into the log's 64-bit numbers


def requested_parts(request: HttpRequest) -> frozenset[str] | None:
    """Return the ids of the requested parts, so that nothing else has to be read; None if the whole page is requested."""
    header = request.headers.get(PARTS)
    return None if header is None else frozenset(header.split())


@require_GET
def stream(request: HttpRequest) -> HttpResponseBase:
    """Server-sent events of the tenant named with ?tenant=, or of one activity or pipeline run of it.

    Starts after `Last-Event-ID`, or after ?after= if a page opens the stream again. It ends with the session, the membership, or a change
    of the role. Without a login the response is 401, because an event source would follow a redirect to the login page.
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
        return HttpResponseBadRequest("This is not a valid id.")
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
    number = number_in(text, LONGEST_NUMBER)
    if text and number is None:
        raise ValueError(text)
    return number
