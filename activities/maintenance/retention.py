"""How long work is kept once it is over: whole trees go together, and their outputs after them.

A tree goes in one transaction: every member is locked and looked at again, so none of it can be taken up meanwhile. Its outputs are noted
in the same transaction and deleted from MongoDB afterwards by `forget_outputs`, so a crash in between loses neither the note nor the
output. What another holds is left for the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import outputs, run_logs, states
from tenants.context import SYSTEM, system_scope
from tenants.models.retention import DepartedTenant, ForgottenOutput
from tenants.retention import Kind, Rows, RowsInTurn, register
from tenants.sql import Statement

_FOLDER = Path(__file__).resolve().parents[1] / "sql" / "retention"
_TREES, _HOLD, _FORGET, _CHILDREN, _EMPTY = (
    Statement.load(_FOLDER, name) for name in ("trees", "hold", "forget", "born_since", "empty_tool_calls")
)
_ALERTS = Rows("activities_alert", _FOLDER, "alerts")
_DEAD_LETTERS = Rows("activities_deadletter", _FOLDER, "dead_letters")
_TOOL_CALLS = Rows("activities_toolcall", _FOLDER, "tool_calls")
_PROVIDER_BATCHES = Rows("activities_providerbatch", _FOLDER, "provider_batches")
_BULK_JOBS = RowsInTurn(
    (
        Rows("activities_bulkitem", _FOLDER, "bulk_items"),
        Rows("activities_bulkjob", _FOLDER, "bulk_jobs"),
    )
)
_MAILBOXES = RowsInTurn(
    (
        Rows("activities_mailboxitem", _FOLDER, "mailbox_items"),
        Rows("activities_mailboxbatch", _FOLDER, "mailbox_batches"),
        Rows("activities_mailbox", _FOLDER, "mailboxes_of_subagents"),
    )
)

ENDED = sorted(states.SETTLED)  # An open dead letter keeps what has failed, as somebody may try it again.
FAMILIES = 25  # in one transaction; a tree has some tens of members at most
MANY = 1_000_000_000


def connect() -> None:
    register(
        Kind(
            "activities",
            "Work outside of pipelines, with its history and outputs",
            _forget_trees,
            _count_trees,
        ),
        Kind("alerts", "Alerts and their deliveries", _ALERTS.portion, _ALERTS.count),
        Kind("bulk_jobs", "Bulk jobs and what became of each activity", _BULK_JOBS.portion, _BULK_JOBS.count),
        Kind("dead_letters", "Dead letters", _DEAD_LETTERS.portion, _DEAD_LETTERS.count),
        Kind(
            "mailboxes", "What was said in mailboxes, and batches of it", _MAILBOXES.portion, _MAILBOXES.count
        ),
        Kind(
            "provider_batches",
            "Batches of model providers",
            _PROVIDER_BATCHES.portion,
            _PROVIDER_BATCHES.count,
        ),
        Kind(
            "tool_calls",
            "Arguments of agents' tool calls; that they were made stays",
            _empty_tool_calls,
            _TOOL_CALLS.count,
        ),
    )


def forget_families(
    tenant_id: UUID,
    rows: Iterable[Any],
    before: datetime,
    *,
    hold: Callable[[list[UUID]], set[UUID]] | None = None,
) -> tuple[set[UUID], int]:
    """Delete families that were found as (family, member) if all of them are still over; which families went, and how many activities.

    `hold` locks the families themselves where they are rows of their own, and says which of them are ours. In a `tenant_scope`.
    """
    families: dict[UUID, set[UUID]] = {}
    for row in rows:
        families.setdefault(row.family, set()).update([row.member] if row.member else [])
    everybody = [member for members in families.values() for member in members]
    common = {"tenant": tenant_id, "members": everybody}
    locked_ids = {row.id for row in _HOLD.run({**common, "before": before, "ended": ENDED})}
    disturbed = {row.parent_id for row in _CHILDREN.run(common)}
    whole = {family: members for family, members in families.items() if members <= locked_ids - disturbed}
    if hold is not None:
        ours = hold(sorted(whole))
        whole = {family: members for family, members in whole.items() if family in ours}
    gone = [member for members in whole.values() for member in members]
    return set(whole), len(_FORGET.run({"tenant": tenant_id, "members": gone})) if gone else 0


def _forget_trees(tenant_id: UUID, before: datetime, most: int) -> int:
    return forget_families(tenant_id, _trees(tenant_id, before, min(most, FAMILIES)), before)[1]


def _count_trees(tenant_id: UUID, before: datetime) -> int:
    return len(_trees(tenant_id, before, MANY))


def _trees(tenant_id: UUID, before: datetime, most: int) -> list[Any]:
    return _TREES.run({"tenant": tenant_id, "before": before, "ended": ENDED, "most": most})


def _empty_tool_calls(tenant_id: UUID, before: datetime, most: int) -> int:
    return len(_EMPTY.run({"tenant": tenant_id, "before": before, "most": most}))


# Forgetting outputs and logs of runs: deletes from MongoDB what PostgreSQL has noted as forgotten.
#
# A note is written in the transaction that deletes the activity, and goes only after MongoDB has confirmed, so a crash anywhere repeats
# the deletion and never skips it. Notes rest for a while first: a copier that read the output before may still be writing it.


AT_ONCE = 500
REST = timedelta(seconds=60)  # well above what a copier may take (`outputs`: 10 s for an answer)
DEPARTED_WATCH = timedelta(hours=1)


def outputs_to_forget() -> QuerySet[Any]:
    """Notes that have rested, of all tenants, for the background task."""
    rows: QuerySet[Any] = ForgottenOutput.objects.filter(at__lte=Now() - REST)
    return rows


def forget_outputs(*, rested: timedelta = REST) -> int:
    """Delete what has been noted; returns how many notes were settled. Raises `PyMongoError` when MongoDB is away."""
    total = 0
    while settled := _forget_some(rested):
        total += settled
    return total


def forget_tenant(tenant_id: UUID) -> int:
    """Delete every document of a tenant from every collection; returns how many. Raises `PyMongoError`."""
    database = outputs.collection().database
    return sum(
        int(database[name].delete_many({"tenant_id": str(tenant_id)}).deleted_count)
        for name in database.list_collection_names()
    )


def look_after_departed() -> int:
    """Delete what copiers may have written for tenants that were off-boarded just now. For the leader."""
    with system_scope():
        recent = list(
            DepartedTenant.objects.filter(began_at__gte=Now() - DEPARTED_WATCH).values_list("pk", flat=True)
        )
    return sum(forget_tenant(tenant_id) for tenant_id in recent)


def _forget_some(rested: timedelta) -> int:
    with system_scope(), transaction.atomic(using=SYSTEM):
        rows = ForgottenOutput.objects.filter(at__lte=Now() - rested).order_by("at")
        notes = list(rows.select_for_update(skip_locked=True)[:AT_ONCE])
    if not notes:
        return 0
    # The activity is named, too: an output that another one made since would bear the same id by no chance, but would stay.
    ids = [str(note.pk) for note in notes]
    activities = sorted({str(note.activity_id) for note in notes})
    outputs.collection().delete_many({"_id": {"$in": ids}, "activity_id": {"$in": activities}})
    run_logs.forget(ids, activities)  # An output's id is that of its run, and there is a note for every run.
    with system_scope():
        ForgottenOutput.objects.filter(pk__in=[note.pk for note in notes]).delete()
    return len(notes)
