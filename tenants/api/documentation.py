"""What the OpenAPI schema says beyond the serializers: which problems an operation may answer with, and the headers that
every change understands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

from tenants.api import schema  # noqa: F401  # its extensions register themselves, before anybody looks at a view

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

    target_class = "tenants.api.strict.StrictSerializer"
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
