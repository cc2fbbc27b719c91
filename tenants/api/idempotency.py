"""`Idempotency-Key`: a POST that is repeated with the same key takes effect once
(draft-ietf-httpapi-idempotency-key-header).

The answer is stored in the transaction of its effect, so a crash never leaves one without the other. If a
handler opens its own transactions (`over_several`), the key is marked before them and the
answer is stored after them; such a request must be harmless to repeat.

A repetition gets the stored answer. Another request with the same key is refused with 422. A request that arrives
while the first is still running gets 409 and may be retried. A key belongs to its caller and path, and is stored
for a day, or as long as the tenant's retention says.

Only successes are stored. An error has rolled back the request's effects, so a retry is safe, and may
succeed later, for example after a 429.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from tenants import clock
from tenants.api.problems import InvalidRequest
from tenants.context import APP, tenant_scope
from tenants.exceptions import TenantError
from tenants.models import IdempotentRequest
from tenants.principals import Principal

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
KEPT_HEADERS = ("Content-Type", "ETag", "Location")
KEY = re.compile(r'"[\x20-\x21\x23-\x7e]{1,255}"|[\x21\x23-\x7e]{1,255}')  # quoted as in the draft, or bare
IN_PROGRESS = 0  # in place of a status
MARK_KEPT = timedelta(seconds=60)  # longer than any request may take

_IN_PROGRESS_MESSAGE = "A request with this Idempotency-Key is still being processed. Try again in a moment."


class StillInProgress(TenantError):
    """The first request with this Idempotency-Key has not ended yet."""

    code = "idempotency_in_progress"
    retry_after = 1


@dataclass(frozen=True, slots=True)
class _Key:
    """The key of a request, as digests: of the caller, the path and the key, and of the whole request."""

    tenant_id: UUID
    digest: str
    request_digest: str

    @property
    def rows(self) -> QuerySet[IdempotentRequest]:
        return IdempotentRequest.objects.for_tenant(self.tenant_id).filter(digest=self.digest)

    def refuse_other(self, earlier: IdempotentRequest) -> None:
        if earlier.request_digest != self.request_digest:
            raise TenantError(
                "This Idempotency-Key was used for a different request. Use a new key.",
                code="idempotency_key_reused",
                status=422,
            )

    def repeat(self, earlier: IdempotentRequest) -> HttpResponse:
        """Return the stored answer."""
        self.refuse_other(earlier)
        headers = {**earlier.headers, REPLAYED: "true"}
        return HttpResponse(bytes(earlier.body), status=earlier.status_code, headers=headers)

    def store(self, response: Any, keep: Callable[[Any], bytes]) -> None:
        """Store the answer, if it is a success."""
        if response.status_code < 400 and not response.streaming:
            headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
            self.write(response.status_code, headers, keep(response))

    def write(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        IdempotentRequest.objects.create(
            tenant_id=self.tenant_id, digest=self.digest, request_digest=self.request_digest, status_code=status, headers=headers,
            body=body,
        )  # fmt: skip


def once(
    request: Request,
    principal: Principal,
    answer: Callable[[], HttpResponseBase],
    keep: Callable[[Any], bytes],
) -> Any:
    """Return the answer to the request, new or stored. Must run in the transaction of the request's effect.

    `keep` returns the body of the answer to store.
    """
    if (key := _find_key(request, principal)) is None:
        return answer()
    _refuse_concurrent(key.tenant_id, key.digest)
    if (earlier := key.rows.first()) is not None:
        return key.repeat(earlier)
    response = answer()
    key.store(response, keep)
    return response


def over_several(
    request: Request,
    principal: Principal,
    answer: Callable[[], HttpResponseBase],
    keep: Callable[[Any], bytes],
) -> Any:
    """Like `once`, for a handler that opens its own transactions. Must run outside of any transaction.

    If the process dies, the mark remains valid for `MARK_KEPT`; after that the request may be repeated.
    """
    if (key := _find_key(request, principal)) is None:
        return answer()
    if (earlier := _mark(key)) is not None:
        return key.repeat(earlier)
    response = None
    try:
        response = answer()
    finally:
        _settle(key, response, keep)
    return response


def is_repetition(request: Request, principal: Principal) -> bool:
    """Whether the answer is already stored. Then a view can skip its work before the transaction, which may fail by now."""
    if (key := _find_key(request, principal)) is None:
        return False
    with tenant_scope(key.tenant_id):
        return key.rows.exists()


def key_of(text: str) -> str:
    """Return the key in a header's value. Raises `InvalidRequest`."""
    if not KEY.fullmatch(text.strip()):
        raise InvalidRequest(
            [(HEADER, "must have 1 to 255 visible ASCII characters")], code="invalid_idempotency_key"
        )
    return text.strip().strip('"')


def _find_key(request: Request, principal: Principal) -> _Key | None:
    text = request.headers.get(HEADER)
    if request.method != "POST" or text is None:
        return None
    digest = _digest("\n".join((principal.credential, request.path, key_of(text))).encode())
    # Of the parsed body, because the same members in another order are the same request.
    body = orjson.dumps(request.data, option=orjson.OPT_SORT_KEYS)
    query = request.META.get("QUERY_STRING", "").encode()
    return _Key(principal.tenant_id, digest, _digest(query + b"\n" + body))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _refuse_concurrent(tenant_id: UUID, digest: str) -> None:
    """Lock the key until the transaction ends, or raise `StillInProgress`, because waiting would block a thread."""
    number = int.from_bytes(
        hashlib.sha256(tenant_id.bytes + digest.encode()).digest()[:8], "big", signed=True
    )
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
        if not cursor.fetchone()[0]:
            raise StillInProgress(_IN_PROGRESS_MESSAGE)


def _mark(key: _Key) -> IdempotentRequest | None:
    """Mark the request as in progress, or return its stored answer. Raises `StillInProgress`."""
    with tenant_scope(key.tenant_id):
        _refuse_concurrent(key.tenant_id, key.digest)
        earlier = key.rows.first()
        if earlier is None:
            key.write(IN_PROGRESS, {}, b"")
            return None
        if earlier.status_code != IN_PROGRESS:
            return earlier
        key.refuse_other(earlier)
        if earlier.created_at > clock.now() - MARK_KEPT:
            raise StillInProgress(_IN_PROGRESS_MESSAGE)
        key.rows.update(created_at=clock.now())
        return None


def _settle(key: _Key, response: Any, keep: Callable[[Any], bytes]) -> None:
    """Replace the mark with the answer if it is a success, otherwise remove the mark."""
    with tenant_scope(key.tenant_id):
        key.rows.delete()
        if response is not None:
            key.store(response, keep)
