"""When PostgreSQL does not answer there is no page, and nobody knows who asks: a person is told so in words, and not by a bare error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
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
    """A page that the database has kept from being made is answered 503, by a page that asks nothing of anybody."""

    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except Exception as error:
            if not outages.may_pass(error):
                raise
            return page(request, error)

    return answered


def page(request: HttpRequest, error: BaseException) -> HttpResponse:
    facts = {"action": "page_without_database", "path": request.path, "reason": type(error).__name__}
    logger.warning("A page could not be made", extra=facts)
    # Without the request, whose user would be asked for.
    body = render_to_string("console/away.html", {"has_sent": request.method == "POST"})
    return HttpResponse(body, status=503, headers={"Retry-After": str(AGAIN_SECONDS)})


# Pages for people whose request came to nothing: what happened, and what to do next.
#
# Programs are answered as before. The pages ask for nothing from the database, whose absence may be why they are shown.


@dataclass(frozen=True, slots=True)
class Words:
    """What a page says."""

    title: str
    explanation: str


NO_SENSE = Words(
    "That request made no sense", "The address or the form is not one that this server understands."
)
NOT_ALLOWED = Words(
    "You may not do that", "Your role does not allow it. An administrator of the tenant can change your role."
)
NOT_THERE = Words(
    "There is no such page",
    "The address may be mistyped, what stood there may be gone, or it may belong to a tenant that you are no member of.",
)
OUR_FAULT = Words(
    "Something went wrong here",
    "It is not your fault, and what you did may or may not have been done. Look before you try it again.",
)
OLD_FORM = Words(
    "This form is too old",
    "Nothing was done. You may have signed in again since, or your browser keeps no cookies. Load the page again and send it again.",
)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler400."""
    return _page(request, NO_SENSE, 400) if _is_read(request) else problems.bad_request(request, exception)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler403."""
    return (
        _page(request, NOT_ALLOWED, 403)
        if _is_read(request)
        else problems.permission_denied(request, exception)
    )


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler404."""
    return _page(request, NOT_THERE, 404) if _is_read(request) else problems.not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500, called while the error is handled. A server that is away is no fault of ours: 503, and when to come back."""
    error = sys.exception()
    if error is not None and outages.may_pass(error):
        return page(request, error) if _is_read(request) else problems.unavailable(request, error)
    return _page(request, OUR_FAULT, 500) if _is_read(request) else problems.server_error(request)


def form_refused(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's CSRF_FAILURE_VIEW."""
    return _page(request, OLD_FORM, 403) if _is_read(request) else csrf_failure(request, reason)


def _is_read(request: HttpRequest) -> bool:
    """Whether a person looks at the answer."""
    return not request.path.startswith(problems.API) and "text/html" in request.headers.get("Accept", "")


def _page(request: HttpRequest, words: Words, status: int) -> HttpResponse:
    context = {"words": words, "status": status, "request_id": getattr(request, "request_id", "")}
    answer = HttpResponse(render_to_string("console/fault.html", context), status=status)
    answer["Content-Security-Policy"] = POLICY_WITH_SCRIPTS  # light or dark, as the person has chosen
    return answer
