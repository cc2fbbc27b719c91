"""Documents operations in the OpenAPI schema beyond their serializers: the possible problems, and the headers that every
change accepts. `tenants.api.schema` adds the rest.

drf-spectacular gets the descriptions when the schema is first requested, because most web processes never need it, and it is large.

A deprecated operation says so in every answer, with the day of its removal (`deprecated`).

`Deprecation` (RFC 9745) is the time from which nobody should begin to use it, `Sunset` (RFC 8594) the time from which it may be
removed, and `Link` names the replacement. The schema marks it as deprecated. Between the two times are at least six months.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

from django.utils.http import http_date
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PROBLEM = "application/problem+json"

MEANINGS = {
    400: "The request is invalid; `errors` lists every error with its path.",
    401: "The credential is missing or invalid.",
    403: "The caller is not allowed to do this; `required_role` names the role that is.",
    404: "The tenant has no such object.",
    406: "The answer is not available in any media type that `Accept` allows.",
    409: "The state of the object does not allow this, or a request with the same `Idempotency-Key` is still running.",
    410: "It existed, but is no longer stored.",
    412: "The object has changed since it was read.",
    413: "The body is too large.",
    415: "The body is not `application/json`, or it is compressed.",
    422: "The `Idempotency-Key` was already used for a different request.",
    429: "Too many requests, or too much work is waiting; retry after `Retry-After` seconds.",
    503: "A server that this needs does not answer; retry after `Retry-After` seconds.",
}

ANYWHERE = (401, 403, 429, 503)
WITH_A_BODY = (400, 413, 415)

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    "header",
    description="Makes the request safe to repeat: a repetition gets the first answer.",
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    "header",
    description="The `ETag` that was read. If the object has changed since then, the request is refused with 412.",
)


class FaultSerializer(serializers.Serializer[Any]):
    """One error in a request."""

    path = serializers.CharField(help_text="For example `steps[2].depends_on[0]`; empty for the whole body.")
    message = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """An error, as defined by RFC 9457. `code` is stable, so programs should check it instead of the texts."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    request_id = serializers.CharField(allow_null=True)
    errors = FaultSerializer(many=True, required=False)  # type: ignore[assignment]  # a field, not the attribute


def problems(*statuses: int, notes: Mapping[int, str] | None = None) -> dict[Any, Any]:
    """Return responses for `extend_schema`: these problems, and those of all operations."""
    meanings = {**MEANINGS, **(notes or {})}
    return {
        (status, PROBLEM): OpenApiResponse(ProblemSerializer, description=meanings[status])
        for status in sorted({*ANYWHERE, *statuses})
    }


def operation(
    summary: str,
    *,
    answer: Any = None,
    status: int = 200,
    answers: Mapping[Any, Any] | None = None,
    refusals: tuple[int, ...] = (),
    notes: Mapping[int, str] | None = None,
    parameters: tuple[OpenApiParameter, ...] = (),
    **more: Any,
) -> Callable[[Decorated], Decorated]:
    """A decorator like `extend_schema`, with one successful answer and the possible refusals.

    Refusals that follow from a body, an Idempotency-Key or an If-Match need not be named. If the body is an `EmptySerializer`, the view
    refuses any members before it calls the handler, and so it does with an If-Match that is not a parameter.
    """
    implied: tuple[int, ...] = WITH_A_BODY if more.get("request") is not None else ()
    implied += (409, 422) if IDEMPOTENCY_KEY in parameters else ()
    implied += (412,) if IF_MATCH in parameters else ()
    description = {
        "summary": summary,
        "responses": {**(answers or {status: answer}), **problems(*implied, *refusals, notes=notes)},
        "parameters": list(parameters),
        **more,
    }

    def decorate(handler: Decorated) -> Decorated:
        vars(handler)["body"] = more.get("request")
        vars(handler)["is_conditional"] = IF_MATCH in parameters
        when_requested(lambda: extend_schema(**description)(handler))
        return handler

    return decorate


def posting(summary: str, request: Any, answer: Any = None, **more: Any) -> Callable[[Decorated], Decorated]:
    """An operation that is harmless to repeat under an Idempotency-Key."""
    return operation(summary, request=request, answer=answer, parameters=(IDEMPOTENCY_KEY,), **more)


def creation(summary: str, request: Any, answer: Any, **more: Any) -> Callable[[Decorated], Decorated]:
    """An operation that creates a row: 201, harmless to repeat under an Idempotency-Key."""
    return posting(summary, request, answer, status=201, **more)


def change(
    summary: str, request: Any, answer: Any = None, *, refusals: tuple[int, ...] = (404,), **more: Any
) -> Callable[[Decorated], Decorated]:
    """An operation that changes a row; with If-Match only if the row is as the caller has read it."""
    return operation(
        summary, request=request, answer=answer, refusals=refusals, parameters=(IF_MATCH,), **more
    )


def command(
    summary: str, request: Any, answer: Any, *, refusals: tuple[int, ...] = (404,), **more: Any
) -> Callable[[Decorated], Decorated]:
    """An operation that acts on a row: like a change, and harmless to repeat under an Idempotency-Key."""
    keys = (IDEMPOTENCY_KEY, IF_MATCH)
    return operation(summary, request=request, answer=answer, refusals=refusals, parameters=keys, **more)


def removal(
    summary: str, *, refusals: tuple[int, ...] = (404,), **more: Any
) -> Callable[[Decorated], Decorated]:
    """An operation that removes a row: 204 and no body; with If-Match only if the row is as the caller has read it."""
    return operation(summary, status=204, refusals=refusals, parameters=(IF_MATCH,), **more)


NOTICE = timedelta(days=182)
DOCUMENTATION = "/api/v1/docs/"


def deprecated(
    *, since: datetime, sunset: datetime, instead: str = DOCUMENTATION
) -> Callable[[Decorated], Decorated]:
    """The outermost decorator of a deprecated method or action of a `TenantView`. Refusals have the headers as well.

    Raises `ValueError` for times without an offset and for a notice of less than six months.
    """
    if since.tzinfo is None or sunset.tzinfo is None:
        raise ValueError("Both times need an offset from UTC")
    if sunset - since < NOTICE:
        raise ValueError(f"Between {since:%Y-%m-%d} and {sunset:%Y-%m-%d} are less than {NOTICE.days} days")
    headers = {
        "Deprecation": f"@{int(since.timestamp())}",
        "Sunset": http_date(sunset.astimezone(UTC).timestamp()),
        "Link": f'<{instead}>; rel="deprecation"',
    }

    def decorate(handler: Decorated) -> Decorated:
        @wraps(handler)
        def with_headers(view: Any, *args: Any, **kwargs: Any) -> Any:
            view.headers.update(headers)
            return handler(view, *args, **kwargs)

        def mark() -> None:
            if hasattr(handler, "kwargs"):  # where `extend_schema` keeps its arguments
                vars(with_headers)["kwargs"] = handler.kwargs
            extend_schema(deprecated=True)(with_headers)

        when_requested(mark)
        return with_headers  # type: ignore[return-value]

    return decorate


_deferred: list[Callable[[], object]] = []
_is_requested = False


def when_requested(describe: Callable[[], object]) -> None:
    """Defer a description until the schema is requested. Descriptions run in the order of these calls."""
    if _is_requested:
        describe()
    else:
        _deferred.append(describe)


def describe() -> None:
    """Run the deferred descriptions. Further ones run at once."""
    global _is_requested
    _is_requested = True
    while _deferred:
        _deferred.pop(0)()
