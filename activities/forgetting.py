"""Forgetting outputs: deletes from MongoDB what PostgreSQL has noted as forgotten.

A note is written in the transaction that deletes the activity, and goes only after MongoDB has confirmed, so a crash anywhere repeats the
deletion and never skips it. Notes rest for a while first: a copier that read the output before may still be writing it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import outputs
from tenants.context import SYSTEM, system_scope
from tenants.retention.models import DepartedTenant, ForgottenOutput

AT_ONCE = 500
REST = timedelta(seconds=60)  # well above what a copier may take (`outputs`: 10 s for an answer)
DEPARTED_WATCH = timedelta(hours=1)


def waiting() -> QuerySet[Any]:
    """Notes that have rested, of all tenants, for the errand."""
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
    wanted = {"_id": {"$in": [str(note.pk) for note in notes]}}
    owners = {"activity_id": {"$in": sorted({str(note.activity_id) for note in notes})}}
    outputs.collection().delete_many({**wanted, **owners})
    with system_scope():
        ForgottenOutput.objects.filter(pk__in=[note.pk for note in notes]).delete()
    return len(notes)
