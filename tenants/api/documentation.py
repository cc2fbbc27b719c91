"""What the OpenAPI schema says beyond the serializers: how to authenticate, which parameters a list takes, which problems an
operation may answer with, and the headers that every change understands.

An operation that will go says so in every answer, with the day, long before it goes (`deprecated`).

`Deprecation` (RFC 9745) is the moment since which nobody should begin to use it, `Sunset` (RFC 8594) the moment from which it may be
gone, and `Link` says what to use instead. The schema marks it as deprecated. Between the two lie at least six months.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

from django.utils.http import http_date
from drf_spectacular.contrib.django_filters import DjangoFilterExtension
from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import get_doc
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

from tenants.api import pagination
from tenants.api.filters import SEARCH, SEARCH_LENGTH

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PROBLEM = "application/problem+json"

MEANINGS = {
    400: "Something in the request is not as it must be; `errors` names each fault by its path.",
    401: "No credential, or one that opens nothing.",
    403: "The caller may not do this; `required_role` says who may.",
    404: "There is no such object in this tenant.",
    406: "The answer comes in none of the kinds that `Accept` names.",
    409: "The object is not in a state in which this can happen.",
    410: "It was there, and is no longer kept.",
    412: "The object has changed since it was read.",
    413: "The body is too large.",
    415: "The body is not `application/json`, or it is compressed.",
    422: "The `Idempotency-Key` was used for another request.",
    429: "Too much at once; try again after `Retry-After` seconds.",
    503: "A server that is needed for this does not answer; try again after `Retry-After` seconds.",
}

ANYWHERE = (401, 403, 429, 503)
WITH_A_BODY = (400, 413, 415)

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    "header",
    description="Makes a repetition harmless: it gets the first answer.",
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    "header",
    description="The `ETag` that was read; the change is refused with 412 if it is another by now.",
)


class ClosedObjects(OpenApiSerializerExtension):
    """Objects of requests take no members but those they name, and the schema says so."""

    target_class = "tenants.api.serializers.StrictSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        mapped: dict[str, Any] = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        if direction == "request" and mapped.get("type") == "object":
            mapped["additionalProperties"] = False
        return mapped


class FaultSerializer(serializers.Serializer[Any]):
    """One thing that is wrong with a request."""

    path = serializers.CharField(help_text="Such as `steps[2].depends_on[0]`; empty for the whole body.")
    message = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457. `code` is stable; programs decide by it."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    request_id = serializers.CharField(allow_null=True)
    errors = FaultSerializer(many=True, required=False)  # type: ignore[assignment]  # a field, not the attribute


def problems(*statuses: int, notes: Mapping[int, str] | None = None) -> dict[Any, Any]:
    """Responses for `extend_schema`: these problems, and those that any operation may answer with."""
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
    """`extend_schema` in the terms of this API: one good answer, and the refusals to expect beside it.

    Those that come with a body, an Idempotency-Key or an If-Match need not be named.
    """
    implied: tuple[int, ...] = WITH_A_BODY if more.get("request") is not None else ()
    implied += (409, 422) if IDEMPOTENCY_KEY in parameters else ()
    implied += (412,) if IF_MATCH in parameters else ()
    decorate: Callable[[Decorated], Decorated] = extend_schema(
        summary=summary,
        responses={**(answers or {status: answer}), **problems(*implied, *refusals, notes=notes)},
        parameters=list(parameters),
        **more,
    )
    return decorate


def creation(summary: str, request: Any, answer: Any, **more: Any) -> Callable[[Decorated], Decorated]:
    """The operation that makes a row: 201, harmless to repeat under an Idempotency-Key."""
    return operation(
        summary, request=request, answer=answer, status=201, parameters=(IDEMPOTENCY_KEY,), **more
    )


def change(summary: str, request: Any, answer: Any, **more: Any) -> Callable[[Decorated], Decorated]:
    """The operation that changes a row, and with If-Match only one that is as the caller has seen it."""
    return operation(summary, request=request, answer=answer, parameters=(IF_MATCH,), **more)


def removal(
    summary: str, *, refusals: tuple[int, ...] = (404,), **more: Any
) -> Callable[[Decorated], Decorated]:
    """The operation that removes a row: 204 and no body, with If-Match only if it is as the caller has seen it."""
    return operation(summary, status=204, refusals=refusals, parameters=(IF_MATCH,), **more)


NOTICE = timedelta(days=182)
DOCUMENTATION = "/api/v1/docs/"


def deprecated(
    *, since: datetime, sunset: datetime, instead: str = DOCUMENTATION
) -> Callable[[Decorated], Decorated]:
    """For a method or action of a `TenantView`, outermost. Refusals carry the headers as well.

    Raises `ValueError` for times without an offset and for a notice of less than six months.
    """
    if since.tzinfo is None or sunset.tzinfo is None:
        raise ValueError("Both moments need an offset from UTC")
    if sunset - since < NOTICE:
        raise ValueError(f"Between {since:%Y-%m-%d} and {sunset:%Y-%m-%d} lie less than {NOTICE.days} days")
    headers = {
        "Deprecation": f"@{int(since.timestamp())}",
        "Sunset": http_date(sunset.astimezone(UTC).timestamp()),
        "Link": f'<{instead}>; rel="deprecation"',
    }

    def decorate(handler: Decorated) -> Decorated:
        @wraps(handler)
        def told(view: Any, *args: Any, **kwargs: Any) -> Any:
            view.headers.update(headers)
            return handler(view, *args, **kwargs)

        marked: Decorated = extend_schema(deprecated=True)(told)  # type: ignore[assignment]
        return marked

    return decorate


Schema = dict[str, Any]


class ResourceSchema(AutoSchema):
    """Describes an operation in the words of its handler, else of its own view: what base classes say is for those who write views."""

    def get_description(self) -> str:  # type: ignore[override]
        handler = getattr(self.view, getattr(self.view, "action", self.method.lower()), None)
        said: str = get_doc(handler) or inspect.cleandoc(vars(type(self.view)).get("__doc__") or "")
        return said


class TokenScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        return {"type": "http", "scheme": "bearer", "description": "A token of `manage.py create_token`."}


class MemberScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.authentication.MemberAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        about = "The session of a person who signed in; changes need a CSRF token."
        return {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": about}


class StrictFilterScheme(DjangoFilterExtension):
    """The view's filters, and what `StrictFilterBackend` adds to them."""

    target_class = "tenants.api.filters.StrictFilterBackend"
    priority = 1

    def get_schema_operation_parameters(self, auto_schema: Any, *args: Any, **kwargs: Any) -> list[Schema]:
        found: list[Schema] = super().get_schema_operation_parameters(auto_schema, *args, **kwargs)
        view = auto_schema.view
        if getattr(view, "search_fields", None):
            found.append(
                _parameter(
                    SEARCH, "Words that must all occur.", {"type": "string", "maxLength": SEARCH_LENGTH}
                )
            )
        if offered := sorted(pagination.offered_by(view)):
            about = f"One or more of {', '.join(offered)}, separated by commas; a leading - is descending."
            found.append(_parameter(pagination.PARAMETER, about, {"type": "string"}))
        return found


def _parameter(name: str, about: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": about, "schema": schema}


_HEADERS: Schema = {
    "RateLimit": {
        "description": "What is left of each limit: `r` requests, all of them again in `t` seconds "
        "(draft-ietf-httpapi-ratelimit-headers). Missing when nobody could count.",
        "schema": {"type": "string", "examples": ['"caller";r=999;t=1, "tenant";r=1999;t=1']},
    },
    "RateLimit-Policy": {
        "description": "The limits: `q` requests in `w` seconds, of the caller and of the whole tenant.",
        "schema": {"type": "string", "examples": ['"caller";q=1000;w=4, "tenant";q=2000;w=4']},
    },
    "X-Request-Id": {
        "description": "Names this request in logs and problems.",
        "schema": {"type": "string"},
    },
    "ETag": {
        "description": "The state of the object. Send it as `If-None-Match` to read only what has changed, as `If-Match` to change only "
        "what you have seen.",
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 0}},
    "Idempotency-Replayed": {
        "description": "`true` when this is the first answer to the same Idempotency-Key, given again.",
        "schema": {"type": "string", "const": "true"},
    },
    "Location": {"description": "The address of what was made.", "schema": {"type": "string"}},
}
_ALWAYS = ("RateLimit", "RateLimit-Policy", "X-Request-Id")
_IF_NONE_MATCH: Schema = {
    "in": "header",
    "name": "If-None-Match",
    "schema": {"type": "string"},
    "description": "An `ETag` that was read; 304 while the object is as it was then.",
}


def add_what_all_have(result: Schema, generator: Any, request: Any, public: bool) -> Schema:
    """drf-spectacular's hook: the headers of all answers, and conditional reading of all objects."""
    result["components"]["headers"] = _HEADERS
    for methods in result["paths"].values():
        for method, operation in methods.items():
            if method == "get" and not operation["operationId"].endswith("_list"):
                operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
                operation["responses"]["304"] = {"description": "It is as it was when it was read."}
            for status, answer in operation["responses"].items():
                answer["headers"] = {
                    name: {"$ref": f"#/components/headers/{name}"}
                    for name in _names(method, status, operation)
                } | answer.get("headers", {})
    return result


def _names(method: str, status: str, operation: Schema) -> list[str]:
    names = list(_ALWAYS)
    if method == "get" and status in ("200", "304") and "304" in operation["responses"]:
        names.append("ETag")
    if status in ("429", "503"):
        names.append("Retry-After")
    if method == "post" and status in ("200", "201", "202"):
        names.append("Idempotency-Replayed")
    if method == "post" and status in ("201", "202"):
        names.append("Location")
    return names
