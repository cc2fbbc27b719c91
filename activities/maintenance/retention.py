"""Retention: deletes ended work when its time has passed, whole trees at once, and then their outputs.

A tree is deleted in one transaction: all its members are locked and checked again, so that none can be claimed meanwhile. The same
transaction notes its outputs, and `forget_outputs` deletes them from MongoDB later, so a crash in between loses nothing. Rows that
somebody else has locked are left for the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import outputs, relay, run_logs, states
from activities.admission import rebuilding
from tenants.context import system_scope
from tenants.models.retention import DepartedTenant, ForgottenOutput
from tenants.retention import TURN_SECONDS, Kind, Rows, RowsInTurn, register
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

# Failed work is kept while its dead letter is open, because it may be replayed.
ENDED = sorted(states.SETTLED)
TREES_AT_ONCE = 25  # in one transaction; a tree has at most some tens of members
NO_LIMIT = 1_000_000_000


def connect() -> None:
    register(
        Kind(
            "activities",
            "Work outside of pipelines, with its history and outputs",
            _forget_trees,
            lambda tenant_id, before: len(_find_trees(tenant_id, before, NO_LIMIT)),
        ),
        Kind.of("alerts", "Alerts and their deliveries", _ALERTS),
        Kind.of("bulk_jobs", "Bulk jobs with their results", _BULK_JOBS),
        Kind.of("dead_letters", "Dead letters", _DEAD_LETTERS),
        Kind.of("mailboxes", "Items of mailboxes, and their batches", _MAILBOXES),
        Kind.of("provider_batches", "Batches of model providers", _PROVIDER_BATCHES),
        Kind(
            "tool_calls",
            "Arguments of agents' tool calls; the calls themselves stay",
            lambda tenant_id, before, most: len(
                _EMPTY.run({"tenant": tenant_id, "before": before, "most": most})
            ),
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
    """Delete the families, given as rows of (family, member), whose members have all still ended. Returns the deleted families, and the
    number of activities.

    If families are rows too, `hold` locks these and returns those that it could lock. Must run in a `tenant_scope`.
    """
    families: dict[UUID, set[UUID]] = {}
    for row in rows:
        families.setdefault(row.family, set()).update([row.member] if row.member else [])
    all_members = [member for members in families.values() for member in members]
    common = {"tenant": tenant_id, "members": all_members}
    locked = {row.id for row in _HOLD.run({**common, "before": before, "ended": ENDED})}
    with_new_children = {row.parent_id for row in _CHILDREN.run(common)}
    complete = {
        family: members for family, members in families.items() if members <= locked - with_new_children
    }
    if hold is not None:
        held = hold(sorted(complete))
        complete = {family: members for family, members in complete.items() if family in held}
    doomed = [member for members in complete.values() for member in members]
    return set(complete), len(_FORGET.run({"tenant": tenant_id, "members": doomed})) if doomed else 0


def _forget_trees(tenant_id: UUID, before: datetime, most: int) -> int:
    return forget_families(tenant_id, _find_trees(tenant_id, before, min(most, TREES_AT_ONCE)), before)[1]


def _find_trees(tenant_id: UUID, before: datetime, most: int) -> list[Any]:
    return _TREES.run({"tenant": tenant_id, "before": before, "ended": ENDED, "most": most})


# Outputs and logs of runs: deletes from MongoDB what PostgreSQL has noted.
#
# The note is written in the transaction that deletes the activity, and is deleted after MongoDB has confirmed. So a crash may repeat the
# deletion but never skips it. Each note waits for a while first, because a copier that read the output earlier may still write it.


AT_ONCE = 500
WAIT = timedelta(seconds=60)  # well above the time of a copier (`outputs`: 10 s for an answer)
DEPARTED_WATCH = timedelta(hours=1)
FORGOTTEN_AT_ONCE = 1_000  # documents of a deleted tenant


def outputs_to_forget() -> QuerySet[Any]:
    """Return the notes of all tenants that have waited long enough, for the background task."""
    return ForgottenOutput.objects.filter(at__lte=Now() - WAIT)


def forget_outputs(*, waited: timedelta = WAIT, within: float = TURN_SECONDS) -> int:
    """Delete the noted outputs and logs, for about so many seconds. Returns the number of notes done. Raises `PyMongoError` if MongoDB is
    unreachable."""
    ends, total = time.monotonic() + within, 0
    while settled := _forget_some(waited):
        total += settled
        if time.monotonic() >= ends:
            break
    return total


def forget_tenant(tenant_id: UUID) -> int:
    """Delete every document of a tenant from every collection. Returns their number. Raises `PyMongoError`.

    In portions, because the client gives up waiting for a deletion of very many documents.
    """
    database, deleted = outputs.collection().database, 0
    for name in database.list_collection_names():
        documents = database[name]
        while ids := [
            found["_id"]
            for found in documents.find({"tenant_id": str(tenant_id)}, {"_id": 1}).limit(FORGOTTEN_AT_ONCE)
        ]:
            deleted += int(documents.delete_many({"_id": {"$in": ids}}).deleted_count)
    return deleted


def remove_from_admission(tenant_id: UUID) -> None:
    """Release the slots of a deleted tenant, which workers may still use for cancelled runs, and withdraw its waiting work.

    Otherwise the counts that all tenants share would be wrong as soon as its keys are deleted. Raises `redis.RedisError`.
    """
    relay.release_and_acquire(rebuilding.find_remains(tenant_id))


def clean_up_departed() -> int:
    """Delete outputs that copiers may have written for tenants after their off-boarding. A job of the leader."""
    with system_scope():
        recent = list(
            DepartedTenant.objects.filter(erased_at__gte=Now() - DEPARTED_WATCH).values_list("pk", flat=True)
        )
    return sum(forget_tenant(tenant_id) for tenant_id in recent)


def _forget_some(waited: timedelta) -> int:
    with system_scope():
        notes = list(ForgottenOutput.objects.filter(at__lte=Now() - waited).order_by("at")[:AT_ONCE])
    if not notes:
        return 0
    # Filter by activity as well, so that an output of another activity would survive even with the same id.
    ids = [str(note.pk) for note in notes]
    activities = sorted({str(note.activity_id) for note in notes})
    outputs.collection().delete_many({"_id": {"$in": ids}, "activity_id": {"$in": activities}})
    run_logs.forget(ids, activities)  # An output's id is that of its run, and there is a note for every run.
    with system_scope():
        ForgottenOutput.objects.filter(pk__in=[note.pk for note in notes]).delete()
    return len(notes)
