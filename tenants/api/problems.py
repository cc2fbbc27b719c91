"""Every error of the API as one kind of answer: `application/problem+json` (RFC 9457) with a stable `code`.

Members: type, title, status, detail, code, request_id, and `errors: [{path, message}]` where something was
invalid. The same shape comes from views, from addresses that do not exist, and from faults of ours, which
tell nothing about themselves.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from django.core.signals import got_request_exception
from django.http import HttpRequest, HttpResponse
from django.views import defaults
from rest_framework.response import Response

from tenants.api.faults import InvalidRequest, as_members
from tenants.api.translation import INTERNAL, NOT_FOUND, Problem, problem_of, register
from tenants.wire_json import dumps

__all__ = ("InvalidRequest", "Problem", "exception_handler", "register")

MEDIA_TYPE = "application/problem+json"
API = "/api/"

logger = logging.getLogger(__name__)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """REST framework's hook: an answer for every exception of a view."""
    request = context["request"]
    problem = problem_of(error)
    if problem is INTERNAL:
        facts = {"action": "request_failed", "tenant": _tenant_of(request)}
        logger.error("Request failed", exc_info=error, extra=facts)
        # What watches Django's own failures, the test client among them, hears of this one too.
        got_request_exception.send(sender=type(context["view"]), request=request._request)
    elif problem.status >= 500:
        logger.warning("Request refused", extra={"action": "request_refused", "reason": type(error).__name__})
    return Response(
        body_of(problem, request),
        status=problem.status,
        headers=dict(problem.headers),
        content_type=MEDIA_TYPE,
    )


def body_of(problem: Problem, request: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        **problem.members,
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        "request_id": getattr(request, "request_id", None),
    }
    if problem.faults:
        body["errors"] = as_members(problem.faults)
    return body


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler400."""
    if not request.path.startswith(API):
        return defaults.bad_request(request, exception)
    return _answer(problem_of(exception), request)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler403."""
    if not request.path.startswith(API):
        return defaults.permission_denied(request, exception)
    return _answer(problem_of(exception), request)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler404: an address that does not exist reads like an object that does not."""
    if not request.path.startswith(API):
        return defaults.page_not_found(request, exception)
    return _answer(Problem(404, "not_found", NOT_FOUND), request)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500."""
    if not request.path.startswith(API):
        return defaults.server_error(request)
    return _answer(INTERNAL, request)


def unavailable(request: HttpRequest, error: BaseException) -> HttpResponse:
    """A server is away, wherever that was noticed: 503 with Retry-After, for programs."""
    return _answer(problem_of(error), request)


def _answer(problem: Problem, request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        dumps(body_of(problem, request)),
        status=problem.status,
        headers=dict(problem.headers),
        content_type=MEDIA_TYPE,
    )


def _tenant_of(request: Any) -> str | None:
    # Not `request.user`: if finding out who is calling is what failed, asking again would fail again.
    return getattr(vars(request).get("_user"), "tenant", None)
