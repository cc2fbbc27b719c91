"""What surrounds a run in a worker: ids on the log lines of all that happens in it, and the span of its trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from agents.routing import queue_of
from tenants import provenance, tracing


@contextmanager
def run_of(row: Any, run_id: UUID, *, began: int) -> Iterator[None]:
    """`row` is the claimed activity, `began` when its claim did, in nanoseconds of the epoch.

    The run continues the trace of whatever woke it last, if that is young; everything else that woke it is linked, and so is the message.
    """
    causes = [wake["provenance"] for wake in row.wakes if wake["provenance"]]
    ids = {"tenant": str(row.tenant_id), "activity": str(row.id), "run": str(run_id), "role": row.agent_role}
    with provenance.of_work(causes, **ids), tracing.span(
        f"run {row.agent_role}", tracing.CONSUMER,
        attributes=_attributes(row, ids) if tracing.is_on() else None,
        causes=causes[-1:], links=[*causes[:-1], *tracing.arrival()], began=began,
    ):  # fmt: skip
        yield


def _attributes(row: Any, ids: dict[str, str]) -> dict[str, Any]:
    return {
        **{f"orchestrator.{name}": value for name, value in ids.items()},
        "orchestrator.attempt": row.attempts,
        "orchestrator.wake_reason": row.reason,
        "orchestrator.request_id": provenance.current().get(provenance.REQUEST, ""),
        "messaging.system": "celery",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue_of(row.agent_role),
    }
