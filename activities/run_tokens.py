"""Run tokens: signed tokens with which an agent can report about one run only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core import signing

from agents.contracts import Callback
from tenants import request_context

_SALT = "orchestrator.agent-run"


@dataclass(frozen=True, slots=True)
class RunToken:
    """What a token proves: this run of this activity of this tenant, under this fencing number.

    The other fields keep the state at the start of the run, whatever changes later.
    """

    tenant_id: UUID
    activity_id: UUID
    run_id: UUID
    fence: int
    briefing: str = ""  # digest of the agent's instructions
    session_id: str = ""  # the conversation that it continues
    signed_as: str = ""  # the role whose secret must sign every report; empty: the token alone is enough
    # The request that caused the work.
    provenance: Mapping[str, Any] | None = field(default=None, compare=False)


def issuing(token: RunToken) -> Callable[[], Callback]:
    """Return a function that signs the callback of a run, its address and token, when it is needed.

    The token links the agent's reports to the request that caused the run, which is read now.
    """
    return partial(_sign_callback, token, request_context.current())


def address_of(run_id: UUID) -> str:
    """Return the URL for reports about a run."""
    base = settings.ORCHESTRATOR_PUBLIC_URL or f"http://127.0.0.1:{settings.PORT}"
    return f"{base}/api/v1/agent-runs/{run_id}/"


def _sign_callback(token: RunToken, caused_by: Mapping[str, Any] | None) -> Callback:
    text = signing.dumps(
        [
            *map(str, (token.tenant_id, token.activity_id, token.run_id)),
            token.fence,
            token.briefing,
            token.session_id,
            *([token.signed_as] if token.signed_as or caused_by else []),
            *([caused_by] if caused_by else []),
        ],
        salt=_SALT,
    )
    return Callback(url=address_of(token.run_id), token=text)


def read(text: str) -> RunToken | None:
    """Verify a token; returns None if we did not issue it. The state of the run decides whether it is still valid."""
    try:
        tenant, activity, run, fence, *rest = signing.loads(text, salt=_SALT)
    except signing.BadSignature:
        return None
    return RunToken(UUID(tenant), UUID(activity), UUID(run), fence, *rest)
