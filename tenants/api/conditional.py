"""`ETag` of everything that is read as one object, and `If-None-Match`: who has the present state is told so with 304 and no body.

An object that counts its changes has its version as its tag; any other gets a digest of what is shown. Lists have none: a cursor that
stays valid is worth more to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse, HttpResponseNotModified
from django.utils.http import parse_etags
from rest_framework.request import Request


def answered(request: Request, response: Any) -> Any:
    """The answer to a GET with its tag, or 304 in its place; any other answer as it is."""
    if request.method != "GET" or response.status_code != 200 or response.streaming:
        return response
    if "ETag" not in response.headers and _is_object(response):
        response.headers["ETag"] = f'"{hashlib.sha256(response.content).hexdigest()[:32]}"'
    tag = response.headers.get("ETag")
    if tag is None or not _has(request.headers.get("If-None-Match"), tag):
        return response
    unchanged: HttpResponse = HttpResponseNotModified(headers={"ETag": tag})
    return unchanged


def _is_object(response: Any) -> bool:
    data = getattr(response, "data", None)
    return not isinstance(data, Mapping) or not {"next", "previous", "results"} <= data.keys()


def _has(condition: str | None, tag: str) -> bool:
    """Whether one of the caller's tags is this one. Weak and strong ones are compared alike, as RFC 9110 has it for GET."""
    if condition is None:
        return False
    known = parse_etags(condition)
    return "*" in known or tag in {each.removeprefix("W/") for each in known}
