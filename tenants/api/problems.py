"""Answers every error of the API with one format: `application/problem+json` (RFC 9457) with a stable `code`.

Members: type, title, status, detail, code, request_id, and `errors: [{path, message}]` for invalid
requests. Views, unknown addresses and internal errors all have this format; internal errors
reveal no details.

The apps' exceptions have the class attributes `code` and `status`. They may have `errors` (a flat list of paths
and messages, such as `steps[2].depends_on[0]`: "unknown step"), a `retry_after` in seconds, and `problem_members` for facts such as who
decided. All other exceptions are internal errors: the caller learns only the request id.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import psycopg
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    ValidationError,
)
from django.core.signals import got_request_exception
from django.db import DataError, IntegrityError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.views import defaults
from rest_framework import exceptions as rest
from rest_framework.response import Response
from rest_framework.settings import api_settings

from tenants import outages
from tenants.wire_json import dumps

MEDIA_TYPE = "application/problem+json"
API = "/api/"

logger = logging.getLogger(__name__)


RETRY_SECONDS = 5  # about as long as a restart of PostgreSQL takes
NOT_FOUND = "Not found."

# REST framework's codes that differ from ours. Its other codes are used unchanged.
CODES = {
    "authentication_failed": "invalid_token",
    "permission_denied": "forbidden",
    "parse_error": "invalid_json",
    "invalid": "validation_failed",
    "error": "internal_error",
}


FieldError = tuple[str, str]  # path, message


class InvalidRequest(rest.APIException):
    """The request is invalid. Every error has its path ("" is the whole body)."""

    status_code = 400
    default_code = "validation_failed"

    def __init__(self, errors: Iterable[FieldError], *, code: str | None = None) -> None:
        self.errors = list(errors)
        super().__init__(
            "; ".join(f"{path}: {message}" if path else message for path, message in self.errors), code
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it is sent to the caller."""

    status: int
    code: str
    detail: str
    errors: tuple[FieldError, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)


INTERNAL = Problem(500, "internal_error", "Something went wrong on our side. Tell us the request id.")


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """REST framework's hook. Returns an answer for every exception of a view."""
    request = context["request"]
    problem = problem_of(error)
    if problem is INTERNAL:
        # Not `request.user`: if the authentication failed, it would fail again.
        facts = {"action": "request_failed", "tenant": getattr(vars(request).get("_user"), "tenant", None)}
        logger.error("Request failed", exc_info=error, extra=facts)
        # Notify the receivers of Django's own failures as well, such as the test client.
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
    if problem.errors:
        body["errors"] = [{"path": path, "message": message} for path, message in problem.errors]
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
    """Django's handler404. Unknown addresses get the same answer as unknown objects."""
    if not request.path.startswith(API):
        return defaults.page_not_found(request, exception)
    return _answer(Problem(404, "not_found", NOT_FOUND), request)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500."""
    if not request.path.startswith(API):
        return defaults.server_error(request)
    return _answer(INTERNAL, request)


def unavailable(request: HttpRequest, error: BaseException) -> HttpResponse:
    """Answer a program with 503 and Retry-After when a server is unavailable."""
    return _answer(problem_of(error), request)


def _answer(problem: Problem, request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        dumps(body_of(problem, request)),
        status=problem.status,
        headers=dict(problem.headers),
        content_type=MEDIA_TYPE,
    )


def problem_of(error: BaseException) -> Problem:
    """Return the problem for an exception, which is `INTERNAL` for unknown ones. Never fails."""
    if isinstance(error, rest.APIException):
        return _of_framework(error)
    return _of_app(error) or _of_django(error) or _of_servers(error) or INTERNAL


def _of_framework(error: rest.APIException) -> Problem:
    headers = _retry_after(getattr(error, "wait", None) or getattr(error, "retry_after", None))
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if isinstance(error, rest.ValidationError):
        return _invalid(flatten_errors(error.detail))
    code = getattr(error.detail, "code", error.default_code)
    return Problem(
        status=error.status_code,
        code=CODES.get(code, code),
        detail=NOT_FOUND if code == "not_found" else str(error.detail),
        errors=tuple(getattr(error, "errors", ())),
        headers=headers,
        members=getattr(error, "problem_members", {}),
    )


def _of_app(error: Any) -> Problem | None:
    kind = type(error)  # errors of libraries may have such attributes as well, but not their classes
    if not isinstance(getattr(kind, "code", None), str) or not isinstance(getattr(kind, "status", None), int):
        return None
    return Problem(
        status=error.status,
        code=error.code,
        detail=NOT_FOUND if error.status == 404 else str(error),
        errors=tuple(_pairs(getattr(error, "errors", ()))),
        headers=_retry_after(getattr(error, "retry_after", None)),
        members=getattr(error, "problem_members", {}),
    )


def _retry_after(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"Retry-After": str(math.ceil(seconds))}


def _of_django(error: BaseException) -> Problem | None:
    match error:
        case Http404():
            return Problem(404, "not_found", NOT_FOUND)
        case PermissionDenied():
            return Problem(403, "forbidden", "You may not do this.")
        case ValidationError():
            return _invalid(errors_of_django(error))
        case RequestDataTooBig():
            return Problem(413, "body_too_large", "The body is too large.")
        case BadRequest() | SuspiciousOperation() | UnreadablePostError():
            return Problem(400, "bad_request", "The request could not be read.")
    return None


def _of_servers(error: BaseException) -> Problem | None:
    if outages.may_pass(error):
        return Problem(
            503,
            "unavailable",
            "A server that is needed for this does not answer. Try again.",
            headers=_retry_after(RETRY_SECONDS),
        )
    match error:
        case DataError():
            return Problem(400, "validation_failed", "A value is out of range.")
        case IntegrityError() if isinstance(error.__cause__, psycopg.errors.UniqueViolation):
            return Problem(409, "conflict", "Somebody else made the same thing at the same time.")
        case IntegrityError() if isinstance(error.__cause__, psycopg.errors.ForeignKeyViolation):
            return Problem(409, "conflict", "Something that this belongs to was deleted at the same time.")
    return None


def _invalid(errors: list[FieldError]) -> Problem:
    return Problem(
        400, "validation_failed", "The request is invalid; see errors for each problem.", errors=tuple(errors)
    )


def _pairs(errors: Iterable[Any]) -> Iterable[FieldError]:
    """Yield the errors of apps, which are pairs, mappings, or objects with `path` and `message`."""
    for error in errors:
        if isinstance(error, Mapping):
            yield str(error.get("path", "")), str(error.get("message", ""))
        elif isinstance(error, tuple) and len(error) == 2:
            yield str(error[0]), str(error[1])
        else:
            yield str(getattr(error, "path", "")), str(getattr(error, "message", error))


def flatten_errors(detail: Any) -> list[FieldError]:
    """Return all errors in the nested detail of a REST framework `ValidationError`, in the order of the fields."""
    return list(_walk("", detail))


def errors_of_django(error: ValidationError) -> list[FieldError]:
    """Return all errors of a model's or form's `ValidationError`."""
    if hasattr(error, "error_dict"):
        return flatten_errors(
            {"" if name == "__all__" else name: texts for name, texts in error.message_dict.items()}
        )
    return flatten_errors(error.messages)


def extend_path(path: str, key: str | int) -> str:
    """Return the path of a member or element below `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if key in ("", api_settings.NON_FIELD_ERRORS_KEY):
        return path
    if key.isidentifier() and key.isascii() and len(key) <= 40:  # as `tenants.strict_json` writes paths
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key[:40])}]"


#: Texts of REST framework and Django, and ours: they follow the path of a member, and say what is expected. They are replaced here, because
#: the frameworks copy some of them into the validators of each field.
_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"This field is required\.", "is required"),
        (r"This field (?:may|cannot) (?:not )?be null\.", "must not be null"),
        (r"This field (?:may|cannot) (?:not )?be blank\.", "must not be blank"),
        (r"This (?:list|dictionary) may not be empty\.", "must not be empty"),
        (r"Expected a list of items but got type .*\.", "must be a list"),
        (r"Expected a dictionary of items but got type .*\.", "must be an object"),
        (r"Ensure this field has no more than (\d+) (\w+)\.", r"must have at most \1 \2"),
        (r"Ensure this field has at least (\d+) (\w+)\.", r"must have at least \1 \2"),
        (
            r"Ensure this value has at most (\d+) characters? \(it has \d+\)\.",
            r"must have at most \1 characters",
        ),
        (r"Ensure this value is less than or equal to (.+)\.", r"must be at most \1"),
        (r"Ensure this value is greater than or equal to (.+)\.", r"must be at least \1"),
        (r"Value must be valid JSON\.", "must be JSON"),
        (r"Null characters are not allowed\.", "must not contain a NUL character"),
        (r"(?:Enter|Must be) a valid UUID\.", "must be a UUID"),
        (r"(?:Enter a whole number|A valid integer is required)\.", "must be a whole number"),
        (r"(?:Enter a number|A valid number is required)\.", "must be a number"),
        (r"Enter a valid date/time\.", "must be a time such as 2026-05-01T09:30:00Z"),
        (r"Not a valid string\.", "must be text"),
    )
)


def _in_our_words(text: str) -> str:
    for pattern, words in _WORDS:
        if match := pattern.fullmatch(text):
            return match.expand(words)
    return text


def _walk(path: str, detail: Any) -> Iterator[FieldError]:
    if isinstance(detail, Mapping):
        for key, inner in detail.items():
            yield from _walk(extend_path(path, key), inner)
    elif isinstance(detail, Sequence) and not isinstance(detail, str):
        yield from _walk_list(path, detail)
    else:
        yield path, _in_our_words(str(detail))


def _walk_list(path: str, details: Sequence[Any]) -> Iterator[FieldError]:
    # A list contains either messages about this path, or one entry per element, with {} for valid ones.
    for index, inner in enumerate(details):
        if isinstance(inner, str):
            yield path, _in_our_words(str(inner))
        else:
            yield from _walk(extend_path(path, index), inner)
