"""Upkeep of a machine that runs command-line agents: what dead workers have left behind is ended and removed, old transcripts go."""

from __future__ import annotations

import time

from django.conf import settings

from tenants.retention import policies

from . import transcripts, workspaces, worktrees

KIND = "transcripts"
DAY = 86_400.0
MOST = 10_000  # files of a tenant in one turn


def sweep() -> int:
    """End what dead workers of this machine have left running, and remove their files; returns of how many runs."""
    return workspaces.sweep(worktrees.undo)


def forget_old_transcripts(*, now: float | None = None) -> int:
    """Delete what each tenant does not want kept any longer, and all of tenants that are gone; returns how many files."""
    own, gone, deleted = policies.overrides(KIND), policies.departed(), 0
    for tenant_id in transcripts.owners():
        if tenant_id in gone:
            deleted += transcripts.forget_all_of(tenant_id)
            continue
        days = own.get(tenant_id, settings.ORCHESTRATOR_RETENTION_DAYS[KIND])
        if days is not None:
            before = (time.time() if now is None else now) - days * DAY
            deleted += transcripts.forget_of(tenant_id, before, most=MOST)
    return deleted
