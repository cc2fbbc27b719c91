"""Upkeep: two threads in every worker and beat process that keep things going. Of all these processes one does it at a time, the leader.

While any worker or beat process lives, delays are promoted, lost workers found, forgotten work offered, Redis rebuilt, outputs copied.
Everything may be done twice or by several at once; the lead saves work, and its epoch keeps out anyone who was frozen in between.
What there is to do, and how often, is the table in `system_jobs`; what is done when a worker dies is in `recovery`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import close_old_connections, connections

from activities.maintenance.leader import Leader, LeadLost, confirm
from activities.maintenance.scheduler import Scheduler
from activities.maintenance.system_jobs import TICK, SystemJob, register, table

__all__ = (
    "TICK",
    "LeadLost",
    "Leader",
    "Scheduler",
    "SystemJob",
    "begin",
    "confirm",
    "end",
    "register",
    "table",
)

logger = logging.getLogger(__name__)

STOP_SECONDS = 1.0  # that a process which ends waits for its lease to be given up


@dataclass(slots=True)
class Maintenance:
    """The candidate for the lead of this process, and the scheduler of its jobs."""

    stopped: threading.Event = field(default_factory=threading.Event)
    leader: Leader = field(default_factory=Leader)
    campaigning: threading.Thread | None = None

    def start(self) -> None:
        scheduler = Scheduler(self.leader, stopped=self.stopped)
        self.campaigning = threading.Thread(target=self._campaign, name="leader", daemon=True)
        self.campaigning.start()
        threading.Thread(target=scheduler.run, name="system-jobs", daemon=True).start()

    def _campaign(self) -> None:
        """On a connection of its own, with nothing else to do, so that no job keeps the lease from being renewed."""
        pause = min(settings.ORCHESTRATOR_TICK_SECONDS, settings.ORCHESTRATOR_LEADER_LEASE_SECONDS / 4)
        while not self.stopped.wait(pause):
            try:
                close_old_connections()
                self.leader.campaign()
            except DatabaseFault as error:
                logger.warning(
                    "Keeper cannot reach PostgreSQL",
                    extra={"action": "keeper_waits", "reason": str(error).strip()},
                )
            except Exception:
                # Whatever it is: a process that stops to be a candidate would be missed when the others are gone.
                logger.exception("The lead could not be asked for", extra={"action": "keeper_part_failed"})
        self.leader.resign()
        connections.close_all()


_maintenance: Maintenance | None = None


def begin() -> None:
    """Start upkeep in this process, once, unless its settings keep it from ever leading."""
    global _maintenance
    if _maintenance is None and settings.ORCHESTRATOR_MAY_LEAD:
        _maintenance = Maintenance()
        _maintenance.start()


def end() -> None:
    """Stop, and let another process lead at once if this one did."""
    global _maintenance
    if _maintenance is not None:
        _maintenance.stopped.set()
        if _maintenance.campaigning is not None:
            _maintenance.campaigning.join(STOP_SECONDS)
        _maintenance = None
