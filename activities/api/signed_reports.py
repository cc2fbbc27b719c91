"""Reports of agents that sign them, after the Standard Webhooks scheme, beside the token of their run.

Whoever signs is held to it: a signature that is wrong, too old or of another agent is 401 though the token is good. Agents of a role whose
option `signed_callbacks` is true must sign, so that a token that was stolen on its way is of no use. A message is known again by its
`webhook-id`: as it was, it gets the first answer; with anything about it changed it is refused. Redis remembers them for longer than
signatures count; while it is away, the database still recognises every report that changes something.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import redis
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from activities import report_memory
from activities.models import Activity
from activities.run_tokens import RunToken
from agents import configuration, webhook_signing
from agents.exceptions import RoleNotFound
from tenants.api.idempotency import HEADER
from tenants.context import tenant_scope

logger = logging.getLogger(__name__)

_HEADERS = (
    webhook_signing.ID_HEADER,
    webhook_signing.TIMESTAMP_HEADER,
    webhook_signing.SIGNATURE_HEADER,
)


def verified(request: Request, token: RunToken, body: bytes) -> bool:
    """Whether a signed report has come before. Raises `AuthenticationFailed` for one that must be signed and is not, or is so wrongly."""
    if not token.signed_as and not any(name in request.headers for name in _HEADERS):
        return False
    role = token.signed_as or _role_of(token)
    secrets = _secrets(token, role)
    if not webhook_signing.verify(headers=dict(request.headers), body=body, secrets=secrets):
        logger.warning(
            "Report refused", extra={"action": "report_signature_refused", "run": str(token.run_id)}
        )
        raise AuthenticationFailed(
            "The signature does not fit this report, or is too old.", "invalid_signature"
        )
    return request.method not in SAFE_METHODS and _came_before(request, token, role, body)


def _role_of(token: RunToken) -> str:
    with tenant_scope(token.tenant_id):
        rows = Activity.objects.for_tenant(token.tenant_id).filter(pk=token.activity_id)
        return rows.values_list("agent_role", flat=True).first() or ""


def _secrets(token: RunToken, role: str) -> Any:
    try:
        return configuration.settings_for(token.tenant_id, role).adapter.signing_secrets
    except RoleNotFound:
        return ()


def _came_before(request: Request, token: RunToken, role: str, body: bytes) -> bool:
    told = "\x00".join((request.method or "", request.path, request.headers.get(HEADER, "")))
    digest = hashlib.sha256(told.encode() + b"\x00" + body).hexdigest()
    message_id = request.headers[webhook_signing.ID_HEADER]
    try:
        first = report_memory.first_of(token.tenant_id, role, message_id, digest)
    except redis.RedisError:
        logger.warning("Reports are not remembered", extra={"action": "report_memory_away"})
        return False
    if first is None:
        return False
    if first != digest:
        logger.warning("Report refused", extra={"action": "report_replayed", "run": str(token.run_id)})
        raise AuthenticationFailed(
            "This webhook-id was used for another report. Use a new one.", "webhook_id_reused"
        )
    return True
