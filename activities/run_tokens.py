"""The token with which an agent reports about one run, and about nothing else."""

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

    It remembers what the run's agent was told at its start, whatever has changed since.
    """

    tenant_id: UUID
    activity_id: UUID
    run_id: UUID
    fence: int
    briefing: str = ""  # digest of what the agent was told it is
    session_id: str = ""  # the conversation that it was given to continue
    signed_as: str = ""  # the role whose secret must sign every report; empty: the token alone is enough
    provenance: Mapping[str, Any] | None = field(default=None, compare=False)  # what set the work going


def issue(token: RunToken) -> Callback:
    """The callback of a run: its address and its token. What the agent reports goes back to what set the run going."""
    return issuing(token)()


def issuing(token: RunToken) -> Callable[[], Callback]:
    """As `issue`, to be signed when somebody wants it; what has set the run going is asked now."""
    return partial(_sign_callback, token, request_context.current())


def address_of(run_id: UUID) -> str:
    """Where a run is reported about."""
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
    """What the token proves, or None when we did not issue it. How long it counts is decided by the run's state."""
    try:
        tenant, activity, run, fence, *rest = signing.loads(text, salt=_SALT)
    except signing.BadSignature:
        return None
    return RunToken(UUID(tenant), UUID(activity), UUID(run), fence, *rest)
