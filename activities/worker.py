"""A worker process comes up and goes away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from django.conf import settings
from django.db import connections

from activities.exceptions import RunSuperseded
from activities.execution import results
from activities.load_shedding import PROTECTION
from activities.models import ActivityRun
from activities.run_tokens import RunToken
from agents import retention, skills
from agents.command_line import workspaces
from tenants import row_security
from tenants.context import system_scope
from tenants.row_security import tenant_tables

from . import intake as activity_intake
from . import leases, relay

logger = logging.getLogger(__name__)

SWEEP_LOOKS = 10  # looks at the host between two at what dead workers have left behind
TIDY_LOOKS = 600


def begin(*, roles: list[str], concurrency: int, intake: activity_intake.Intake | None = None) -> None:
    """Take up work: refuse a database that does not keep tenants apart, register, and let admission know the new seats."""
    row_security.refuse_unsafe_database(tenant_tables())
    remove_files_left_behind()
    activity_intake.use(intake)
    lease = leases.begin(roles=roles, concurrency=concurrency, check=hand_back_unattended)
    activity_intake.tell_admission()
    if roles:
        workspaces.sweep()
        threading.Thread(target=_tend, args=(lease,), name="host", daemon=True).start()


def _tend(lease: leases.Lease) -> None:
    """Look after the host until the process ends."""
    looks = 0
    while not lease.ended.wait(settings.ORCHESTRATOR_LOAD_SECONDS):
        _try(PROTECTION.look)
        if looks % SWEEP_LOOKS == 0:
            _try(workspaces.sweep)
        if looks % TIDY_LOOKS == 0:
            _try(retention.delete_old_transcripts)
        looks += 1
    connections.close_all()


def _try(part: Callable[[], object]) -> None:
    """A host that cannot be looked at for a moment must not go without anybody who looks."""
    try:
        part()
    except Exception:
        logger.exception("The host could not be looked after", extra={"action": "host_untended"})


def hand_back_unattended(lease: leases.Lease) -> None:
    """Give back runs that are ours in PostgreSQL but that no thread of this process works on.

    That happens when the commit of a claim succeeded and its answer was lost with the connection. Seen at two beats in a row, so
    that a run which is just ending is left alone.
    """
    with system_scope():
        ours = list(ActivityRun.objects.filter(worker_id=lease.worker_id, status="running"))
    unattended = {run.pk for run in ours} - lease.runs.keys()
    for run in ours:
        if run.pk in unattended & lease.doubtful:
            logger.warning(
                "Run without a thread handed back", extra={"action": "run_unattended", "run": str(run.pk)}
            )
            with suppress(RunSuperseded):
                # Counted as a stall: what makes its recording fail each time must come to an end. But no outage is its fault.
                token = RunToken(run.tenant_id, run.activity_id, run.pk, run.fence)
                results.record_stalled(token, counts=run.pk not in lease.cut_off)
            lease.cut_off.discard(run.pk)
    lease.doubtful = unattended


def remove_files_left_behind() -> None:
    """Remove the files of runs that are not live: their worker was killed. A run is live before its files are made."""
    left = skills.list_leftover_runs()
    with system_scope():
        live = set(ActivityRun.objects.filter(pk__in=left, status="running").values_list("pk", flat=True))
    for run_id in left - live:
        skills.remove(run_id)


def drain() -> None:
    """The process has been told to stop: it takes nothing new, and what it runs may end."""
    leases.current().drain()
    activity_intake.tell_admission()


def end() -> None:
    """Stop: no further grants for this process. What it still runs ends or is taken over."""
    leases.end()
    activity_intake.tell_admission()
    relay.flush()
