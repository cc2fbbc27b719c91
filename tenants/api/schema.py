"""Configures drf-spectacular's OpenAPI schema of our views: closed objects, descriptions from handlers, authentication, filters, and
the headers of all answers.

It is imported when the schema is first requested, and then runs the descriptions that `tenants.api.documentation` has deferred.
"""

from __future__ import annotations

import inspect
from typing import Any

from drf_spectacular.contrib.django_filters import DjangoFilterExtension
from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import get_doc

from tenants.api import documentation, pagination
from tenants.api.filters import SEARCH, SEARCH_LENGTH

Schema = dict[str, Any]


class ClosedObjects(OpenApiSerializerExtension):
    """Declares that objects of requests accept no other members."""

    target_class = "tenants.api.serializers.StrictSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        mapped: dict[str, Any] = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        if direction == "request" and mapped.get("type") == "object":
            mapped["additionalProperties"] = False
        return mapped


class ResourceSchema(AutoSchema):
    """Describes an operation with the docstring of its handler, else of its own view. Docstrings of base classes are for developers."""

    def get_description(self) -> str:  # type: ignore[override]
        handler = getattr(self.view, getattr(self.view, "action", self.method.lower()), None)
        return get_doc(handler) or inspect.cleandoc(vars(type(self.view)).get("__doc__") or "")


class TokenScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        return {"type": "http", "scheme": "bearer", "description": "A token from `manage.py create_token`."}


class MemberScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.authentication.MemberAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        about = "The session of a person who signed in; changes need a CSRF token."
        return {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": about}


class StrictFilterScheme(DjangoFilterExtension):
    """Describes the view's filters, and those of `StrictFilterBackend`."""

    target_class = "tenants.api.filters.StrictFilterBackend"
    priority = 1
    _has_gis = False  # there are no geographic fields; to find that out, the library would search for GDAL, which takes 0.2 s

    def get_schema_operation_parameters(self, auto_schema: Any, *args: Any, **kwargs: Any) -> list[Schema]:
        parameters: list[Schema] = super().get_schema_operation_parameters(auto_schema, *args, **kwargs)
        view = auto_schema.view
        if getattr(view, "search_fields", None):
            parameters.append(
                _parameter(
                    SEARCH, "Words that must all occur.", {"type": "string", "maxLength": SEARCH_LENGTH}
                )
            )
        if offered := sorted(pagination.orderings_of(view)):
            about = f"One or more of {', '.join(offered)}, separated by commas; a leading - is descending."
            parameters.append(_parameter(pagination.PARAMETER, about, {"type": "string"}))
        return parameters


def _parameter(name: str, about: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": about, "schema": schema}


_HEADERS: Schema = {
    "RateLimit": {
        "description": "What is left of each limit: `r` requests now, and the full number in `t` seconds "
        "(draft-ietf-httpapi-ratelimit-headers). Absent if requests could not be counted.",
        "schema": {"type": "string", "examples": ['"caller";r=999;t=1, "tenant";r=1999;t=1']},
    },
    "RateLimit-Policy": {
        "description": "The limits of the caller and of the whole tenant: `q` requests in `w` seconds.",
        "schema": {"type": "string", "examples": ['"caller";q=1000;w=4, "tenant";q=2000;w=4']},
    },
    "X-Request-Id": {
        "description": "The id of this request in logs and problems.",
        "schema": {"type": "string"},
    },
    "ETag": {
        "description": "The version of the object. Send it as `If-None-Match` to get 304 while the object is unchanged, or as `If-Match` "
        "to change the object only if nobody else has changed it.",
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds to wait before the next request.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "Idempotency-Replayed": {
        "description": "`true` if this is the stored first answer to the same Idempotency-Key.",
        "schema": {"type": "string", "const": "true"},
    },
    "Location": {"description": "The address of the created object.", "schema": {"type": "string"}},
}
_ALWAYS = ("RateLimit", "RateLimit-Policy", "X-Request-Id")
_IF_NONE_MATCH: Schema = {
    "in": "header",
    "name": "If-None-Match",
    "schema": {"type": "string"},
    "description": "An `ETag` that was read; the answer is 304 while the object is unchanged.",
}


def add_what_all_have(result: Schema, generator: Any, request: Any, public: bool) -> Schema:
    """drf-spectacular's hook. Adds the headers of all answers, and conditional reads of all objects."""
    result["components"]["headers"] = _HEADERS
    for methods in result["paths"].values():
        for method, operation in methods.items():
            if method == "get" and not operation["operationId"].endswith("_list"):
                operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
                operation["responses"]["304"] = {
                    "description": "The object has not changed since it was read."
                }
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


documentation.describe()
