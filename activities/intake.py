"""Intake: the roles of which a worker process accepts new work now. Admission grants it no other work, and it takes no other messages.

The intake can be closed, with a reason for people. The row of the process stores this, and admission's limits lose the seats, so nothing
is granted that only this process could take. Work that was granted before and arrives later is requeued. Runs continue. If the row cannot
be written, the next heartbeat writes it. A closed intake ends with its process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import redis
from django.db import transaction

from activities import leases, relay
from activities.admission import Closed, Exchange, limits
from activities.leases import Lease
from tenants.context import APP

logger = logging.getLogger(__name__)


#: Makes the source of this process's messages take those of these roles only. May be called from any thread.
TakeOnly = Callable[[Sequence[str]], None]

_take_only: TakeOnly | None = None


def use(take_only: TakeOnly | None) -> None:
    """Set the message source that follows the intake."""
    global _take_only
    _take_only = take_only


def close(reason: str) -> None:
    """Take no new work. Does nothing if it is closed already."""
    lease = leases.current()
    if not lease.close(reason):
        return
    logger.warning("Intake closed", extra={"action": "door_closed", "reason": reason})
    _propagate(lease)


def open_again() -> None:
    """Take new work again. A process that is shutting down never does."""
    lease = leases.current()
    if not lease.open():
        return
    logger.info("Intake opened", extra={"action": "door_opened"})
    _propagate(lease)


def serve(roles: Sequence[str]) -> None:
    """Take work of these roles from now on. Some of them may not have existed when the process started."""
    lease = leases.current()
    if lease.draining.is_set():
        return
    lease.serve(list(roles))
    if _take_only is not None:
        _take_only(lease.open_roles())
    logger.info("Roles served", extra={"action": "roles_served", "roles": list(roles)})
    update_admission()


def _propagate(lease: Lease) -> None:
    # The message source first, because that needs no server. Untaken messages wait for other workers, or the audit withdraws their grants.
    if _take_only is not None:
        _take_only(lease.open_roles())
    lease.store_intake()
    update_admission()


def update_admission_after_commit() -> None:
    """As `update_admission`, when the current transaction has committed."""
    transaction.on_commit(update_admission, using=APP, robust=True)


def update_admission() -> None:
    """Put the current limits in force, and grant the work that now has room."""
    try:
        if limits.refresh():
            relay.release_and_acquire(Exchange())
    except (Closed, redis.RedisError) as error:
        # The leader updates admission at its next tick.
        logger.warning(
            "Admission could not be updated", extra={"action": "limits_wait", "reason": type(error).__name__}
        )
