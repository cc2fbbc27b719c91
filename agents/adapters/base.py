"""What every adapter does: run one request and answer with a result or an `AgentError`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agents.contracts import AgentRequest, AgentResult


class Adapter(Protocol):
    """A way to reach agents. One instance serves all tenants and threads and keeps nothing of a request."""

    def run(self, request: AgentRequest, *, cancelled: Callable[[], bool]) -> AgentResult:
        """Run once, within `request.timeout_seconds`; repeating is the engine's business.

        `cancelled` tells whether anybody still wants the result. An adapter that waits asks it about once a
        second and gives up when it says so. It must not be asked in a tight loop: it may cost a query.
        """
        ...  # pragma: no cover


def never_cancelled() -> bool:
    """For callers who would always take the result."""
    return False
