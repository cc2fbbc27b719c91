"""Error pages for people: for an unavailable database, and for the status codes 400, 403, 404 and 500.

They never query the database, because its absence may be the error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views.csrf import csrf_failure

from console.content_security import POLICY_WITH_SCRIPTS
from tenants import outages
from tenants.api import problems

logger = logging.getLogger(__name__)

View = Callable[..., HttpResponse]
AGAIN_SECONDS = 5


def show_outages(view: View) -> View:
    """Return a 503 page when the view fails because the database is unavailable."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except Exception as error:
            if not outages.may_pass(error):
                raise
            return page(request, error)

    return wrapper


def page(request: HttpRequest, error: BaseException) -> HttpResponse:
    facts = {"action": "page_without_database", "path": request.path, "reason": type(error).__name__}
    logger.warning("Page could not be rendered", extra=facts)
    # Render without the request, because its user would be read from the database.
    body = render_to_string("console/away.html", {"has_sent": request.method == "POST"})
    return HttpResponse(body, status=503, headers={"Retry-After": str(AGAIN_SECONDS)})


# Pages for status codes. Programs get a JSON problem instead.


def _handler(status: int, title: str, explanation: str, for_programs: View) -> View:
    """Return a handler of errors, which answers browsers with a page, and others with the answer of `for_programs`."""

    def handle(request: HttpRequest, *details: Any, **more: Any) -> HttpResponse:
        if not _wants_html(request):
            return for_programs(request, *details, **more)
        context = {
            "title": title,
            "explanation": explanation,
            "status": status,
            "request_id": getattr(request, "request_id", ""),
        }
        answer = HttpResponse(render_to_string("console/fault.html", context), status=status)
        answer["Content-Security-Policy"] = POLICY_WITH_SCRIPTS  # theme.js applies the person's colours
        return answer

    return handle


#: Django's handler400, handler403, handler404 and CSRF_FAILURE_VIEW.
bad_request = _handler(
    400, "Bad request", "The server does not understand this address or form.", problems.bad_request
)
permission_denied = _handler(
    403,
    "Permission denied",
    "Your role does not allow this. An administrator of the tenant can change your role.",
    problems.permission_denied,
)
not_found = _handler(
    404,
    "Page not found",
    "The address may be wrong, the page may have been deleted, or it may belong to a tenant that you are not a member of.",
    problems.not_found,
)
form_refused = _handler(
    403,
    "This form has expired",
    "Nothing was done. You may have signed in again since, or your browser blocks cookies. Reload the page and submit the form again.",
    csrf_failure,
)
_our_fault = _handler(
    500,
    "Server error",
    "An internal error occurred. Your request may or may not have taken effect. Check before you try again.",
    problems.server_error,
)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500, called while the error is handled. An unavailable server is answered with 503 and a time to retry."""
    error = sys.exception()
    if error is not None and outages.may_pass(error):
        return page(request, error) if _wants_html(request) else problems.unavailable(request, error)
    return _our_fault(request)


def _wants_html(request: HttpRequest) -> bool:
    """Return whether the client is a browser outside the API."""
    return not request.path.startswith(problems.API) and "text/html" in request.headers.get("Accept", "")
