"""The token with which an agent reports about one run, and about nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.core import signing

from agents.contracts import Callback

_SALT = "orchestrator.agent-run"


@dataclass(frozen=True, slots=True)
class RunToken:
    """What a token proves: this run of this activity of this tenant, under this fencing number."""

    tenant_id: UUID
    activity_id: UUID
    run_id: UUID
    fence: int


def issue(token: RunToken) -> Callback:
    """The callback of a run: its address and its token."""
    text = signing.dumps(
        [str(token.tenant_id), str(token.activity_id), str(token.run_id), token.fence], salt=_SALT
    )
    base = settings.ORCHESTRATOR_PUBLIC_URL or f"http://127.0.0.1:{settings.PORT}"
    return Callback(url=f"{base}/api/v1/agent-runs/{token.run_id}/", token=text)


def read(text: str) -> RunToken | None:
    """What the token proves, or None when we did not issue it. How long it counts is decided by the run's state."""
    try:
        tenant, activity, run, fence = signing.loads(text, salt=_SALT)
    except signing.BadSignature:
        return None
    return RunToken(UUID(tenant), UUID(activity), UUID(run), fence)
