"""From an exception to the problem that the caller is told about.

Errors of the apps say themselves what they mean: a class attribute `code`, and a `status` (or one that was
`register`ed). They may carry `faults`, a `retry_after` in seconds, and `problem_members` for facts such as
who decided. What is not named here or there is a mistake of ours: the caller learns nothing about it but the
request id.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    ValidationError,
)
from django.db import DataError, IntegrityError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions as rest

from tenants import outages
from tenants.api import faults
from tenants.exceptions import LimiterUnavailable

RETRY_SECONDS = 5  # about as long as a restart of PostgreSQL takes
NOT_FOUND = "Not found."

# REST framework's own codes, where ours differ. Its codes for everything else are ours as well.
CODES = {
    "authentication_failed": "invalid_token",
    "permission_denied": "forbidden",
    "parse_error": "invalid_json",
    "invalid": "validation_failed",
    "error": "internal_error",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, as told to the caller."""

    status: int
    code: str
    detail: str
    faults: tuple[faults.Fault, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)


INTERNAL = Problem(500, "internal_error", "Something went wrong on our side. Tell us the request id.")

_statuses: dict[type[BaseException], int] = {}


def register(error: type[BaseException], status: int) -> None:
    """Answer this error and its subclasses with a status, unless a class says otherwise itself."""
    _statuses[error] = status


register(LimiterUnavailable, 503)


def problem_of(error: BaseException) -> Problem:
    """Never fails; what nobody knows is `INTERNAL`."""
    if isinstance(error, rest.APIException):
        return _of_framework(error)
    return _of_app(error) or _of_django(error) or _of_servers(error) or INTERNAL


def _of_framework(error: rest.APIException) -> Problem:
    headers = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if (wait := getattr(error, "wait", None) or getattr(error, "retry_after", None)) is not None:
        headers["Retry-After"] = str(math.ceil(wait))
    if isinstance(error, rest.ValidationError):
        return _invalid(faults.flatten(error.detail))
    code = getattr(error.detail, "code", error.default_code)
    return Problem(
        status=error.status_code,
        code=CODES.get(code, code),
        detail=NOT_FOUND if error.status_code == 404 else str(error.detail),
        faults=tuple(getattr(error, "faults", ())),
        headers=headers,
        members=getattr(error, "problem_members", {}),
    )


def _of_app(error: BaseException) -> Problem | None:
    code, status = getattr(error, "code", None), _status_of(type(error))
    if not isinstance(code, str) or status is None:
        return None
    wait = getattr(error, "retry_after", None)
    return Problem(
        status=status,
        code=code,
        detail=NOT_FOUND if status == 404 else str(error),
        faults=tuple(_pairs(getattr(error, "faults", ()))),
        headers={} if wait is None else {"Retry-After": str(math.ceil(wait))},
        members=getattr(error, "problem_members", {}),
    )


def _of_django(error: BaseException) -> Problem | None:
    match error:
        case Http404():
            return Problem(404, "not_found", NOT_FOUND)
        case PermissionDenied():
            return Problem(403, "forbidden", "You may not do this.")
        case ValidationError():
            return _invalid(faults.of_django(error))
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
            headers={"Retry-After": str(RETRY_SECONDS)},
        )
    match error:
        case DataError():
            return Problem(400, "validation_failed", "A value is out of range.")
        case IntegrityError() if isinstance(error.__cause__, psycopg.errors.UniqueViolation):
            return Problem(409, "conflict", "Somebody else made the same thing at the same time.")
    return None


def _invalid(found: list[faults.Fault]) -> Problem:
    return Problem(
        400, "validation_failed", "The request has faults; each is listed under errors.", faults=tuple(found)
    )


def _status_of(kind: type[BaseException]) -> int | None:
    for ancestor in kind.__mro__:
        own = ancestor.__dict__.get("status", _statuses.get(ancestor))
        if isinstance(own, int):
            return own
    return None


def _pairs(found: Iterable[Any]) -> Iterable[faults.Fault]:
    """Faults as apps write them: pairs, mappings, or objects with `path` and `message`."""
    for fault in found:
        if isinstance(fault, Mapping):
            yield str(fault.get("path", "")), str(fault.get("message", ""))
        elif isinstance(fault, tuple) and len(fault) == 2:
            yield str(fault[0]), str(fault[1])
        else:
            yield str(getattr(fault, "path", "")), str(getattr(fault, "message", fault))
