"""Replays from the command line, by the functions of the API: of failures in portions with a bar, of runs also on trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction

from activities.dead_letters import operations
from activities.models import DeadLetter
from activities.models.dead_letter import DeadLetterState
from pipelines import replay
from pipelines.graph import StepState
from pipelines.models import StepRun
from tenants.context import APP, tenant_scope

from .commands import counted

ACTOR = "command:replay"
PORTION = 200  # failures of one transaction: whoever ends the command half-way has replayed whole portions
MOST_GROUPS = 100
SHOWN = ("fingerprint", "agent_role", "reason", "open", "last_at", "example")


def groups(tenant_id: UUID) -> list[dict[str, Any]]:
    """What is open, sorted as in the API, most frequent first, with the message of the newest as example."""
    with tenant_scope(tenant_id):
        letters = DeadLetter.objects.for_tenant(tenant_id)
        found = list(
            operations.groups(letters)
            .filter(open__gt=0)
            .order_by("-open", "fingerprint", "reason")[:MOST_GROUPS]
        )
        newest = letters.in_bulk([UUID(group.example) for group in found])
    return [
        {
            **{name: getattr(group, name) for name in SHOWN},
            "example": str(newest[UUID(group.example)].error.get("message", "")),
        }
        for group in found
    ]


def failures(
    tenant_id: UUID, wanted: Mapping[str, Any], *, dry_run: bool, per_second: int | None = None, stream: Any
) -> dict[str, Any]:
    """Set the open failures going again that fit. With a rate all in one transaction, since each start has its own moment."""
    with tenant_scope(tenant_id):
        ids = list(_open(tenant_id, wanted).order_by("pk").values_list("pk", flat=True))
    size = PORTION if per_second is None and not dry_run else max(1, len(ids))
    portions = [ids[start : start + size] for start in range(0, len(ids), size)]
    count, seconds = 0, 0.0
    for portion in counted(portions, "replayed", stream):
        with tenant_scope(tenant_id):
            done = operations.replay(
                tenant_id, _these(tenant_id, portion), actor=ACTOR, per_second=per_second, dry_run=dry_run
            )
        count, seconds = count + done.count, max(seconds, done.seconds)
    return {"count": count, "skipped": len(ids) - count, "seconds": seconds}


def run(tenant_id: UUID, run_id: UUID, *, from_step: str, dry_run: bool) -> dict[str, Any]:
    """Do an ended run again. On trial it is done and taken back, so that what is said is what would happen."""
    with tenant_scope(tenant_id):
        new = replay.replay(tenant_id, run_id, from_step=from_step, actor=ACTOR)
        rows = list(
            StepRun.objects.for_tenant(tenant_id).filter(run_id=new.pk, branch=0).order_by("position")
        )
        if dry_run:
            transaction.set_rollback(True, using=APP)
    anew = [row.step for row in rows if row.status in (StepState.PENDING, StepState.ACTIVE)]
    return {
        "run": None if dry_run else new.pk,
        "anew": anew,
        "kept": [row.step for row in rows if row.step not in anew],
    }


def _open(tenant_id: UUID, wanted: Mapping[str, Any]) -> Any:
    return DeadLetter.objects.for_tenant(tenant_id).filter(state=DeadLetterState.OPEN, **wanted)


def _these(tenant_id: UUID, ids: Sequence[Any]) -> Any:
    return DeadLetter.objects.for_tenant(tenant_id).filter(pk__in=ids)
