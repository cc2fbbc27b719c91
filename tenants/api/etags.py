"""`ETag`, `If-None-Match` and `If-Match`, with versions or digests as tags.

Objects that do not count their changes get a digest of their representation as the tag. It is for objects that change seldom, because
another change may happen between the check of `If-Match` and the lock that the change takes. Objects that several people edit have
versions instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponseNotModified
from django.utils.http import parse_etags
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.exceptions import PreconditionFailed
from tenants.wire_json import dumps


class DigestEtag:
    """A mixin for a `TenantView` whose answers with one object are that object."""

    request: Any  # the view's
    # Members that change with time, which does not count as a change of the object.
    volatile: ClassVar[tuple[str, ...]] = ()

    def refuse_changed(self, representation: Mapping[str, Any]) -> None:
        """Raise `PreconditionFailed` if the caller's If-Match does not match the current `representation`."""
        if "If-Match" not in self.request.headers:
            return
        etags = parse_etags(self.request.headers["If-Match"])
        if not ("*" in etags or self._tag(representation) in etags):
            raise PreconditionFailed("The object has changed. Read it again and decide again.")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        data = getattr(response, "data", None)
        is_object = isinstance(data, Mapping) and "results" not in data
        if isinstance(response, Response) and response.status_code < 300 and is_object:
            response.headers.setdefault("ETag", self._tag(data or {}))
        return super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]  # the view's

    def state_of(self, representation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the members of the object that determine its tag."""
        return {name: value for name, value in representation.items() if name not in self.volatile}

    def _tag(self, representation: Mapping[str, Any]) -> str:
        return digest_of(self.state_of(representation))


def digest_of(representation: Mapping[str, Any]) -> str:
    return f'"{hashlib.sha256(dumps(representation)).hexdigest()[:32]}"'


# Every single object has an `ETag`. A GET with a matching `If-None-Match` is answered with 304 and no body.
#
# The tag is the version of an object that counts its changes, and otherwise a digest of the representation. Lists have no tags, because
# stable cursors are more useful for them.


def answer_conditionally(request: Request, response: Any) -> Any:
    """Return the answer to a GET with its tag, or 304 instead. Other answers stay unchanged."""
    if request.method != "GET" or response.status_code != 200 or response.streaming:
        return response
    if "ETag" not in response.headers and _is_object(response):
        response.headers["ETag"] = f'"{hashlib.sha256(response.content).hexdigest()[:32]}"'
    tag = response.headers.get("ETag")
    if tag is None or not _has(request.headers.get("If-None-Match"), tag):
        return response
    return HttpResponseNotModified(headers={"ETag": tag})


def refuse_condition(request: Request) -> None:
    """Raise `PreconditionFailed` for a change with a tag in If-Match that nothing checks, because ignoring it might change what the caller
    has not read."""
    if request.method not in SAFE_METHODS and request.headers.get("If-Match", "*").strip() != "*":
        raise PreconditionFailed(
            "This request changes no object that was read, so it cannot be conditional. Send it without If-Match."
        )


def _is_object(response: Any) -> bool:
    data = getattr(response, "data", None)
    return not isinstance(data, Mapping) or not {"next", "previous", "results"} <= data.keys()


def _has(condition: str | None, tag: str) -> bool:
    """Whether one of the caller's tags matches. Weak and strong tags are compared in the same way, as RFC 9110 specifies for GET."""
    if condition is None:
        return False
    known = parse_etags(condition)
    return "*" in known or tag in {each.removeprefix("W/") for each in known}


# `If-Match` with versions: nobody can change a state that they have not read.
#
# A view with `Versioned` sends the tag `"<version>-<digest>"` with every object that is read, created or changed. A change with `If-Match`
# locks the row first, and is refused with 412 when its version is different, so nobody can change the row between the check and the change.
#
# The digest is there because an object also has members that change without a new version, such as a pause, the next time of a schedule, or
# what an activity waits for. So a 304 is never stale. `If-Match` compares only the version.


class Versioned:
    """A mixin for a `TenantView` whose objects count their changes in `version_field`."""

    version_field = "version"

    request: Any  # the view's

    def get_queryset(self) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset()  # type: ignore[misc]  # the view's
        return rows.select_for_update(of=("self",)) if self._is_conditional() else rows

    def get_object(self) -> Any:
        row = super().get_object()  # type: ignore[misc]  # the view's
        self.check_if_match(getattr(row, self.version_field))
        return row

    def check_if_match(self, version: int | None) -> None:
        """Raise `PreconditionFailed` unless the caller's If-Match, if any, allows a change of this version.

        None means an object that does not exist yet. `get_object` calls this.
        """
        if not self._is_conditional():
            return
        etags = parse_etags(self.request.headers["If-Match"])
        versions = {tag.strip('"').partition("-")[0] for tag in etags}
        if version is None or not ("*" in etags or str(version) in versions):
            state = "does not exist" if version is None else f"is at version {version}"
            raise PreconditionFailed(f"The object {state}. Read it again and decide again.")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        data = getattr(response, "data", None)
        if response.status_code < 300 and isinstance(response, Response) and isinstance(data, Mapping):
            version = data.get(self.version_field)
            if isinstance(version, int):
                response.headers.setdefault("ETag", etag_of(version, data))
        return super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]  # the view's

    def _is_conditional(self) -> bool:
        return self.request.method not in SAFE_METHODS and "If-Match" in self.request.headers


def etag_of(version: int, representation: Mapping[str, Any] | None = None) -> str:
    if representation is None:
        return f'"{version}"'
    return f'"{version}-{digest_of(representation)[1:13]}"'
