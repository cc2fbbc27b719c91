"""Workers that are lost in the middle of their work."""

from __future__ import annotations

from activities.maintenance import recovery
from activities.models import WorkerProcess
from tenants.context import system_scope
from tests.engine import Engine


class Died(BaseException):
    """Ends a worker in the middle of its work, as SIGKILL would: nothing of ours catches it."""


def lose(engine: Engine) -> None:
    """Declare the engine's own worker lost, and let it begin again under another id."""
    with system_scope():
        assert recovery.declare_lost(WorkerProcess.objects.get(pk=engine.lease.worker_id))
    engine.lease.beat()
