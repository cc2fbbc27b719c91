"""The audit trail of the API: records a request's changes in the transaction of the change.

All views use this module, so no operation can omit it. A view whose POST changes nothing says why in `not_audited`. The states of an
object before and after are the answers of its own address, so the trail and the API always agree. The view of an object without an id
returns its state from `audited_state`. A view of several objects may set `audited_detail`, which must contain neither secrets nor texts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.urls import Resolver404, resolve
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request, clone_request

from tenants import audit
from tenants.audit import one_line, redact
from tenants.context import tenant_scope
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Bucket
from tenants.wording import describe_count

logger = logging.getLogger(__name__)

API = "/api/v1"
CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")
# The recorded refusals of one caller: at once, and per second. Further ones contain nothing new and would only fill the trail.
REFUSALS_AT_ONCE, REFUSALS_PER_SECOND = 60.0, 0.2
PATIENCE_SECONDS = 0.05


def is_watched(view: Any) -> bool:
    """Whether the view's request may change something."""
    return view.request.method not in SAFE_METHODS and not getattr(view, "not_audited", "")


def before(view: Any) -> Mapping[str, Any] | None:
    """Return the current state of the request's object, or None if there is not exactly one, or it does not exist."""
    return _state_of(view) if is_watched(view) else None


def record_change(view: Any, seen: Mapping[str, Any] | None, response: Any) -> None:
    """Record what the request did: in its transaction, or, if it had several, after them."""
    tenant_id = tenant_of(view.request)
    if not is_watched(view) or tenant_id is None or response.status_code >= 400:
        return
    data = getattr(response, "data", None)
    sent = view.request.data
    detail: dict[str, Any] = {"status": response.status_code}
    if seen is None:
        body = sent if isinstance(sent, Mapping) else {}
        changed = audit.changes_between(None, body) if isinstance(data, Mapping) and "id" in data else {}
        detail |= {} if changed else {"sent": redact("", sent) if body else _summarise_list(sent)}
    else:
        after: Any = None
        if view.request.method != "DELETE":
            is_state = isinstance(data, Mapping) and seen.keys() <= data.keys()
            after = data if is_state else _state_of(view)
        changed = audit.changes_between(seen, after)
    detail |= getattr(view, "audited_detail", {})
    glass = getattr(view.request.user, "break_glass_id", None)
    with tenant_scope(tenant_id), audit.through_glass({tenant_id: glass} if glass else {}):
        audit.record(
            operation_of(view.request),
            actor=audit.actor_of(view.request.user),
            tenant_id=tenant_id,
            about=about(view, data),
            changes=changed,
            detail=detail,
        )


def record_refusal(view: Any, response: Any) -> None:
    """Record that a request was answered with 403 or 404. Call it after the request's own transaction, which was rolled back."""
    request = view.request
    tenant_id = tenant_of(request)
    if tenant_id is None or response.status_code not in (403, 404) or not _may_be_recorded(request):
        return
    detail = {"status": response.status_code, "code": (getattr(response, "data", None) or {}).get("code", "")}
    try:
        with tenant_scope(tenant_id):
            audit.record(
                operation_of(request),
                actor=audit.actor_of(request.user),
                tenant_id=tenant_id,
                about=about(view, None),
                detail=detail,
                outcome="refused",
            )
    except DatabaseError as error:  # The answer stays the same, and the request log contains it too.
        logger.warning(
            "Refusal could not be recorded", extra={"action": "audit_failed", "reason": type(error).__name__}
        )


def operation_of(request: Any) -> str:
    """Return the operation as the OpenAPI schema writes it, such as `POST /activities/{id}/approve/`."""
    route = request.resolver_match.route if request.resolver_match else ""
    path = CONVERTER.sub(lambda match: f"{{{'id' if match[1] == 'pk' else match[1]}}}", f"/{route}")
    return f"{request.method} {path.removeprefix(API)}"


def about(view: Any, data: Any) -> tuple[str, str]:
    """Return the kind and the id of the object: the collection in the address, and the first name after it."""
    kind = view.request.path.removeprefix(API).strip("/").partition("/")[0]
    if view.kwargs:
        return kind, one_line(next(iter(view.kwargs.values())))
    named = data if isinstance(data, Mapping) else {}
    return kind, next((one_line(named[key]) for key in ("id", "key", "role", "name") if key in named), "")


def tenant_of(request: Any) -> UUID | None:
    """Return the tenant of the authenticated caller, if any. Agents have it in the token of their run."""
    caller = vars(request).get("_user")  # not `request.user`, which would authenticate again
    tenant_id = getattr(caller, "tenant_id", None) or getattr(
        getattr(caller, "token", None), "tenant_id", None
    )
    return tenant_id if isinstance(tenant_id, UUID) else None


def _state_of(view: Any) -> Mapping[str, Any] | None:
    """Return the state that the view itself defines, for an object without an id, or the answer of the object's address."""
    if (audited_state := getattr(view, "audited_state", None)) is not None:
        state: Mapping[str, Any] = audited_state()
        return state
    return _read_object(view) if view.kwargs else None


def _read_object(view: Any) -> Mapping[str, Any] | None:
    """Return the answer of the object's own address: the request's address, or the nearest above it, that returns one object."""
    tenant_id, reader = tenant_of(view.request), _reader(view)
    if reader is None or tenant_id is None:
        return None
    try:
        with tenant_scope(tenant_id):
            data = getattr(reader, reader.shows)(reader.request, **reader.kwargs).data
    except DatabaseError:
        raise
    except Exception:  # noqa: BLE001 - it does not exist, and the request itself will report that
        return None
    return data if isinstance(data, Mapping) else None


def _reader(view: Any) -> Any:
    path = view.request.path
    while len(path) > len(API) + 1:
        try:
            match = resolve(path)
        except Resolver404:
            match = None
        kind = getattr(match.func, "cls", None) if match else None
        shows = (getattr(match.func, "actions", None) or {"get": "get"}).get("get") if match else None
        if match and kind and match.kwargs and shows not in (None, "list") and hasattr(kind, str(shows)):
            return _make_view(kind, match, view.request, str(shows))
        path = path.rstrip("/").rpartition("/")[0] + "/"
    return None


def _make_view(kind: type[Any], match: Any, request: Request, shows: str) -> Any:
    if getattr(kind, "not_audited", "") or "agent-runs/" in match.route:
        return None
    reader = kind(**getattr(match.func, "initkwargs", {}))
    reader.request = clone_request(request, "GET")
    reader.args, reader.kwargs, reader.headers, reader.format_kwarg = (), match.kwargs, {}, None
    reader.action = reader.shows = shows
    return reader


def _summarise_list(sent: Any) -> Any:
    return f"[{describe_count(len(sent), 'element')}]" if isinstance(sent, list) else None


def _may_be_recorded(request: Any) -> bool:
    actor = audit.actor_of(request.user)
    try:
        bucket = Bucket(
            f"refusals:{actor.kind}:{actor.id}", REFUSALS_PER_SECOND, REFUSALS_AT_ONCE, PATIENCE_SECONDS
        )
        return bucket.take().allowed
    except LimiterUnavailable:
        return True
