"""Upkeep: two threads in every worker and beat process run the system jobs, but only in the one process that leads.

While any worker or beat process lives, it ends delays, finds lost workers, offers forgotten work, rebuilds Redis and copies outputs.
Every job may run twice or in several processes at once. The lead only saves work; its epoch stops a former leader that was frozen.
The jobs and their periods are the table in `system_jobs`; `recovery` handles dead workers.
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

logger = logging.getLogger(__name__)

STOP_SECONDS = 1.0  # how long an ending process waits until its lease is released


@dataclass(slots=True)
class Maintenance:
    """The leader election of this process, and the scheduler of its jobs."""

    stopped: threading.Event = field(default_factory=threading.Event)
    leader: Leader = field(default_factory=Leader)
    campaign_thread: threading.Thread | None = None

    def start(self) -> None:
        scheduler = Scheduler(self.leader, stopped=self.stopped)
        self.campaign_thread = threading.Thread(target=self._campaign, name="leader", daemon=True)
        self.campaign_thread.start()
        threading.Thread(target=scheduler.run, name="system-jobs", daemon=True).start()

    def _campaign(self) -> None:
        """Renew the lease in a separate thread and connection, so that no job can delay the renewal."""
        pause = min(settings.ORCHESTRATOR_TICK_SECONDS, settings.ORCHESTRATOR_LEADER_LEASE_SECONDS / 4)
        while not self.stopped.wait(pause):
            try:
                close_old_connections()
                self.leader.campaign()
            except DatabaseFault as error:
                logger.warning(
                    "Leader election cannot reach PostgreSQL",
                    extra={"action": "keeper_waits", "reason": str(error).strip()},
                )
            except Exception:
                # Continue after any error, because this process may be the only candidate left.
                logger.exception("Leader election failed", extra={"action": "keeper_part_failed"})
        self.leader.resign()
        connections.close_all()


_maintenance: Maintenance | None = None


def begin() -> None:
    """Start upkeep in this process, once, unless `ORCHESTRATOR_MAY_LEAD` is false."""
    global _maintenance
    if _maintenance is None and settings.ORCHESTRATOR_MAY_LEAD:
        _maintenance = Maintenance()
        _maintenance.start()


def end() -> None:
    """Stop upkeep. If this process leads, it releases the lease, so that another one takes over at once."""
    global _maintenance
    if _maintenance is not None:
        _maintenance.stopped.set()
        if _maintenance.campaign_thread is not None:
            _maintenance.campaign_thread.join(STOP_SECONDS)
        _maintenance = None
