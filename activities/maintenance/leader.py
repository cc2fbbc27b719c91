"""Leader election: one of all worker and beat processes does the upkeep, under a lease in PostgreSQL with a fencing epoch.

The lease lasts for `ORCHESTRATOR_LEADER_LEASE_SECONDS` by PostgreSQL's clock; its holder renews it at every tick. A holder that is
frozen, swapped out or cut off does not renew it, so another process takes over and raises the epoch. The old holder stops: it measures the
lease on its own monotonic clock from before the renewal, and changes that must not happen twice check the epoch in PostgreSQL at the end
of their transaction (`confirm`). The lead does not depend on a connection, session or advisory lock, so a takeover waits for none.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import Error as DatabaseFault

from tenants import clock
from tenants.context import SYSTEM
from tenants.identifiers import uuid7
from tenants.sql import Statement

logger = logging.getLogger(__name__)

_CAMPAIGN, _CONFIRM, _RESIGN = (
    Statement.load(Path(__file__).resolve().parent.parent / "sql" / "leader", name)
    for name in ("campaign", "confirm", "resign")
)


#: After an outage of PostgreSQL, consumers of mailboxes have this long to renew their leases.
CONSUMERS_PATIENCE_SECONDS = 30


class LeadLost(Exception):
    """The epoch has ended: another process leads, or may lead."""


@dataclass(slots=True)
class Leader:
    """The leader election of this process. One thread campaigns; all may ask whether the process leads."""

    clock: Callable[[], float] = time.monotonic
    holder: UUID = field(default_factory=uuid7)
    epoch: int = 0  # 0: does not lead
    valid_until: float = float("-inf")
    began: float | None = None  # time of the first campaign

    def campaign(self) -> bool:
        """Renew the lease, or take it over if it has run out. If it raises `django.db.Error`, a held lease stays valid until its end."""
        started, own_epoch = self.clock(), self.epoch
        self.began = started if self.began is None else self.began
        before = time.monotonic()
        (lease,) = _CAMPAIGN.run(
            {
                "holder": self.holder,
                "epoch": own_epoch,
                "host": socket.gethostname()[:255],
                "pid": os.getpid(),
                "seconds": settings.ORCHESTRATOR_LEADER_LEASE_SECONDS,
                "lived": started - self.began,
                "heartbeat": settings.ORCHESTRATOR_HEARTBEAT_SECONDS,
                "patience": CONSUMERS_PATIENCE_SECONDS,
            },
            using=SYSTEM,
        )
        # Updates the clock every second, so that workers and beats need no query for the time.
        clock.learn(lease.now, requested_at=before)
        if lease.epoch is None:
            self.epoch = 0
            if own_epoch:
                logger.warning("Leadership lost", extra={"action": "lead_lost", "epoch": own_epoch})
            return False
        # Counted from before the statement, so that the lease ends here before it ends in PostgreSQL.
        self.valid_until = started + settings.ORCHESTRATOR_LEADER_LEASE_SECONDS
        self.epoch = lease.epoch
        if self.epoch != own_epoch:
            logger.info("Lead taken", extra={"action": "lead_taken", "epoch": self.epoch})
        return True

    def leads(self) -> bool:
        """Return whether this process leads, as far as it knows without a query."""
        return self.epoch > 0 and self.clock() < self.valid_until

    def resign(self) -> None:
        """Release the lease, so that another process can lead at once. If PostgreSQL does not answer, the lease runs out."""
        epoch, self.epoch = self.epoch, 0
        if epoch:
            try:
                _RESIGN.run({"holder": self.holder, "epoch": epoch}, using=SYSTEM)
            except DatabaseFault:
                logger.info("Lease left to run out", extra={"action": "lead_left", "epoch": epoch})


def confirm(epoch: int) -> None:
    """Raise `LeadLost` unless the epoch is current. In a transaction on `SYSTEM` it then stays current until the commit; call this last."""
    if not _CONFIRM.run({"epoch": epoch}, using=SYSTEM):
        raise LeadLost(epoch)
