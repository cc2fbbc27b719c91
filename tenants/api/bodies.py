"""Parses request bodies, which are one uncompressed JSON document of bounded size and shape, and renders answers with
`tenants.wire_json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from rest_framework import status
from rest_framework.exceptions import APIException, UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from tenants import strict_json
from tenants.api.problems import InvalidRequest
from tenants.wire_json import dumps


class BodyTooLarge(APIException):
    """The body has more bytes than this address accepts."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "body_too_large"


class LengthRequired(APIException):
    """The body was sent in chunks. Its length must be announced, or it would count as empty."""

    status_code = status.HTTP_411_LENGTH_REQUIRED
    default_code = "length_required"
    default_detail = "Send the body with a Content-Length, not in chunks."


class StrictJSONParser(BaseParser):
    """Reads `application/json` by the rules of `tenants.strict_json`.

    A duplicate key in an object is refused, because two programs might use different values. A view may relax the rules with
    attributes: `max_body_bytes`, `max_body_values`, and `allows_array` for a list at the top. A view with `raw_body` gets the
    unchanged bytes, for signatures.
    """

    media_type = "application/json"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        view = (parser_context or {}).get("view")
        limit = body_limit(view)
        raw = stream.read(limit + 1)
        if view is not None and hasattr(view, "raw_body"):
            view.raw_body = raw
        if not raw.strip():
            return {}
        try:
            value = strict_json.loads(
                raw,
                max_bytes=limit,
                max_nodes=getattr(view, "max_body_values", strict_json.MAX_NODES),
                reject_duplicate_keys=True,
            )
        except strict_json.StrictJSONError as error:
            if error.code == strict_json.TOO_LARGE:
                raise BodyTooLarge(_too_large(limit)) from error
            raise InvalidRequest([(error.path, error.message)], code=error.code) from error
        if isinstance(value, dict) or (isinstance(value, list) and getattr(view, "allows_array", False)):
            return value
        raise InvalidRequest([("", "must be a JSON object")])


def refuse_odd_body(request: Request, view: Any) -> None:
    """Refuse bodies by their headers alone, before a byte is read."""
    if request.META.get("HTTP_CONTENT_ENCODING", "identity").lower() not in ("", "identity"):
        # A few kilobytes can unpack to gigabytes.
        raise UnsupportedMediaType("", "The body must not be compressed: omit Content-Encoding.")
    announced = request.META.get("CONTENT_LENGTH") or ""
    if not announced and request.META.get("HTTP_TRANSFER_ENCODING"):
        raise LengthRequired
    if announced.isdecimal() and int(announced) > body_limit(view):
        raise BodyTooLarge(_too_large(body_limit(view)))


def body_limit(view: Any) -> int:
    """Return the maximum of bytes that a view accepts."""
    return int(getattr(view, "max_body_bytes", None) or settings.ORCHESTRATOR_MAX_BODY_BYTES)


def _too_large(limit: int) -> str:
    return f"The body may have {limit} bytes at most."


class JSONRenderer(BaseRenderer):
    """Renders everything the API answers, problems included."""

    media_type = "application/json"
    format = "json"
    charset = None  # JSON is UTF-8 by definition
    render_style = "binary"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return b"" if data is None else dumps(data)
