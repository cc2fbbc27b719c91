"""Intake: which roles a worker process takes new work of now. Admission grants it no other work, and it takes no other messages.

The intake is closed for a role, or for all roles, with a reason that people can read. This is stored in the row of the process and in the
limits of admission: the seats are withdrawn, so nothing is granted that only this process could take. Work that was granted before and
arrives after the intake was closed waits again. Runs under way continue. A row that could not be written is written with the next beat;
when the process dies, the closed intake ends with its row.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import redis

from activities.admission import Closed, Exchange, limits
from activities.leases import ALL, Lease

from . import leases, relay

logger = logging.getLogger(__name__)


class Intake(Protocol):
    """Where the process takes its messages from."""

    def take_only(self, roles: Sequence[str]) -> None:
        """Take messages of these roles and of no others. May be called from any thread."""
        ...  # pragma: no cover


_intake: Intake | None = None


def use(intake: Intake | None) -> None:
    """Set who is notified, besides admission, when intake of a role is paused or resumed."""
    global _intake
    _intake = intake


def close(reason: str, *, role: str = ALL) -> None:
    """Take no new work of the role, or of any role. Does nothing when it is closed already."""
    lease = leases.current()
    if not lease.close(reason, role=role):
        return
    logger.warning("Door closed", extra={"action": "door_closed", "role": role, "reason": reason})
    _tell(lease)


def open_again(*, role: str = ALL) -> None:
    """Take new work again. A process that is shutting down never does."""
    lease = leases.current()
    if not lease.open(role=role):
        return
    logger.info("Door opened", extra={"action": "door_opened", "role": role})
    _tell(lease)


def serve(roles: Sequence[str]) -> None:
    """Take work of these roles from now on, of which some were not known when the process started."""
    lease = leases.current()
    if lease.draining.is_set():
        return
    lease.serve(list(roles))
    if _intake is not None:
        _intake.take_only(lease.open_roles())
    logger.info("Roles served", extra={"action": "roles_served", "roles": list(roles)})
    tell_admission()


def _tell(lease: Lease) -> None:
    """The intake first: it needs no server, and what it does not take waits for others or is taken back by the audit."""
    if _intake is not None:
        _intake.take_only(lease.open_roles())
    lease.store_intake()
    tell_admission()


def is_open(lease: Lease, role: str) -> bool:
    return not lease.closed or (ALL not in lease.closed and role not in lease.closed)


def tell_admission() -> None:
    """Tell admission the present number of seats, and grant the work that they have room for."""
    try:
        if limits.refresh():
            relay.release_and_acquire(Exchange())
    except (Closed, redis.RedisError) as error:
        # The leader does it at its next tick.
        logger.warning("Admission not told", extra={"action": "limits_wait", "reason": type(error).__name__})
