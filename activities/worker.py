"""Start, housekeeping and end of a worker process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from django.conf import settings
from django.db import connections

from activities import intake, leases, relay
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

logger = logging.getLogger(__name__)

SWEEP_AFTER = 10  # load measurements between two sweeps of workspaces that dead workers left behind
TIDY_AFTER = 600  # and between two deletions of old transcripts


def begin(*, roles: list[str], concurrency: int, take_only: intake.TakeOnly | None = None) -> None:
    """Start to work: refuse a database without row-level security, register this process, and update the seats in admission."""
    row_security.refuse_unsafe_database(tenant_tables())
    remove_leftover_files()
    intake.use(take_only)
    lease = leases.begin(roles=roles, concurrency=concurrency, check=hand_back_unattended)
    intake.update_admission()
    if roles:
        workspaces.sweep()
        threading.Thread(target=_watch_host, args=(lease,), name="host", daemon=True).start()


def _watch_host(lease: leases.Lease) -> None:
    """Measure the load and remove leftover files until the process ends."""
    count = 0
    while not lease.ended.wait(settings.ORCHESTRATOR_LOAD_SECONDS):
        _try(PROTECTION.measure)
        if count % SWEEP_AFTER == 0:
            _try(workspaces.sweep)
        if count % TIDY_AFTER == 0:
            _try(retention.delete_old_transcripts)
        count += 1
    connections.close_all()


def _try(part: Callable[[], object]) -> None:
    """Log an error instead of raising it, so that the thread continues."""
    try:
        part()
    except Exception:
        logger.exception("A check of the host failed", extra={"action": "host_untended"})


def hand_back_unattended(lease: leases.Lease) -> None:
    """Requeue runs that belong to this process in PostgreSQL but that none of its threads works on.

    That happens if the commit of a claim succeeded and its response was lost with the connection. A run must be seen at two beats in a row,
    because one that is just ending must not be requeued.
    """
    with system_scope():
        ours = list(ActivityRun.objects.filter(worker_id=lease.worker_id, status="running"))
    unattended = {run.pk for run in ours} - lease.runs.keys()
    for run in ours:
        if run.pk in unattended & lease.doubtful:
            logger.warning(
                "Run without a thread requeued", extra={"action": "run_unattended", "run": str(run.pk)}
            )
            with suppress(RunSuperseded):
                # It counts as a stall, so that a run whose result can never be recorded ends some day, unless an outage caused it.
                token = RunToken(run.tenant_id, run.activity_id, run.pk, run.fence)
                results.record_stalled(token, counts=run.pk not in lease.cut_off)
            lease.cut_off.discard(run.pk)
    lease.doubtful = unattended


def remove_leftover_files() -> None:
    """Remove the files of runs that are not live, because their worker was killed. A run becomes live before its files are created."""
    run_ids = skills.list_leftover_runs()
    with system_scope():
        live = set(ActivityRun.objects.filter(pk__in=run_ids, status="running").values_list("pk", flat=True))
    for run_id in run_ids - live:
        skills.remove(run_id)


def drain() -> None:
    """Take no new work, because the process was told to stop; its runs may end."""
    leases.current().drain()
    intake.update_admission()


def finish_runs(*, is_cut_short: Callable[[], bool]) -> None:
    """Wait for runs that threads outside of Celery's pool have taken over (`quick_work`). Celery has waited for those of its pool."""
    lease = leases.current()
    while lease.active and not is_cut_short():
        time.sleep(0.1)


def end() -> None:
    """End the lease: no further grants for this process. Its remaining runs end, or other workers take them over."""
    leases.end()
    intake.update_admission()
    relay.flush()
