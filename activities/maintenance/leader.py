"""Leadership: of all workers and beats one process does the upkeep, under a lease in PostgreSQL with a fencing epoch.

The lease lasts for `ORCHESTRATOR_LEADER_LEASE_SECONDS` by PostgreSQL's clock; its holder renews it at every tick. A holder that is
frozen, swapped out or cut off does not renew, and another process takes over, which raises the epoch. The old one cannot go on: it
counts the lease from before it asked, on its own monotonic clock, and what must not be done by two asks PostgreSQL for the epoch at the
end of its own transaction (`confirm`). No connection, session or advisory lock stands for the lead, so nobody waits for the end of one.
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


# After an outage, until a consumer of a mailbox must have said that it is still there: what its lease is at least between two heartbeats.
CONSUMERS_PATIENCE_SECONDS = 30


class LeadLost(Exception):
    """The epoch is over: another process leads, or may."""


@dataclass(slots=True)
class Leader:
    """This process as a candidate. One thread campaigns; any may ask whether it leads."""

    clock: Callable[[], float] = time.monotonic
    holder: UUID = field(default_factory=uuid7)
    epoch: int = 0  # 0: does not lead
    valid_until: float = float("-inf")
    began: float | None = None  # when it asked first

    def campaign(self) -> bool:
        """Renew the lease, or take over one that has run out. Raises `django.db.Error`; then the lease goes on for as long as it lasts."""
        started, own_epoch = self.clock(), self.epoch
        self.began = started if self.began is None else self.began
        before = time.monotonic()
        (found,) = _CAMPAIGN.run(
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
        # Every second, so that workers and beats need never ask what time it is.
        clock.tell(found.now, asked_at=before)
        if found.epoch is None:
            self.epoch = 0
            if own_epoch:
                logger.warning("Lead lost", extra={"action": "lead_lost", "epoch": own_epoch})
            return False
        # Counted from before the question: whatever the answer took, PostgreSQL ends the lease later than we do.
        self.valid_until = started + settings.ORCHESTRATOR_LEADER_LEASE_SECONDS
        self.epoch = found.epoch
        if self.epoch != own_epoch:
            logger.info("Lead taken", extra={"action": "lead_taken", "epoch": self.epoch})
        return True

    def leads(self) -> bool:
        """As far as this process knows, without asking anybody."""
        return self.epoch > 0 and self.clock() < self.valid_until

    def resign(self) -> None:
        """Let another process lead at once. When PostgreSQL does not answer, it will when the lease has run out."""
        epoch, self.epoch = self.epoch, 0
        if epoch:
            try:
                _RESIGN.run({"holder": self.holder, "epoch": epoch}, using=SYSTEM)
            except DatabaseFault:
                logger.info("Lease left to run out", extra={"action": "lead_left", "epoch": epoch})


def confirm(epoch: int) -> None:
    """Raise `LeadLost` unless the epoch is in force. In a transaction on `SYSTEM` it stays so until the commit; ask last."""
    if not _CONFIRM.run({"epoch": epoch}, using=SYSTEM):
        raise LeadLost(epoch)
