"""A worker process comes up and goes away."""

from __future__ import annotations

import logging
from contextlib import suppress

import redis

from activities import leases, relay, results
from activities.admission import Closed, Exchange, limits
from activities.exceptions import RunSuperseded
from activities.models import ActivityRun
from activities.run_tokens import RunToken
from agents import skill_files
from tenants import row_security
from tenants.checks import tenant_tables
from tenants.context import system_scope

logger = logging.getLogger(__name__)


def begin(*, roles: list[str], concurrency: int) -> None:
    """Take up work: refuse a database that does not keep tenants apart, register, and let admission know the new seats."""
    row_security.refuse_unsafe_database(tenant_tables())
    remove_files_left_behind()
    leases.begin(roles=roles, concurrency=concurrency, check=hand_back_unattended)
    _tell_admission()


def hand_back_unattended(lease: leases.Lease) -> None:
    """Give back runs that are ours in PostgreSQL but that no thread of this process works on.

    That happens when the commit of a claim succeeded and its answer was lost with the connection. Seen at two beats in a row, so
    that a run which is just ending is left alone.
    """
    with system_scope():
        ours = list(ActivityRun.objects.filter(worker_id=lease.worker_id, status="running"))
    unattended = {run.pk for run in ours} - lease.runs
    for run in ours:
        if run.pk in unattended & lease.doubtful:
            logger.warning(
                "Run without a thread handed back", extra={"action": "run_unattended", "run": str(run.pk)}
            )
            with suppress(RunSuperseded):
                # Counted as a stall: what makes its recording fail each time must come to an end.
                results.stalled(RunToken(run.tenant_id, run.activity_id, run.pk, run.fence))
    lease.doubtful = unattended


def remove_files_left_behind() -> None:
    """Remove the files of runs that are not live: their worker was killed. A run is live before its files are made."""
    left = skill_files.left_behind()
    with system_scope():
        live = set(ActivityRun.objects.filter(pk__in=left, status="running").values_list("pk", flat=True))
    for run_id in left - live:
        skill_files.remove(run_id)


def drain() -> None:
    """The process has been told to stop: it takes nothing new, and what it runs may end."""
    leases.current().drain()
    _tell_admission()


def end() -> None:
    """Stop: no further grants for this process. What it still runs ends or is taken over."""
    leases.end()
    _tell_admission()
    relay.flush()


def _tell_admission() -> None:
    try:
        if limits.refresh():
            relay.turn_over(Exchange(), go_on=False)
    except (Closed, redis.RedisError) as error:
        # The keeper does it at its next tick.
        logger.warning("Admission not told", extra={"action": "limits_wait", "reason": type(error).__name__})
