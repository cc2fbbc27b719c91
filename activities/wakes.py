"""Wakes: durable reasons to run. They are the engine's outbox.

A wake is recorded in the transaction that gives the reason. Equal pending wakes merge; wakes that arrive during a run wait and
lead to exactly one further run that carries them all. A wake of a terminal activity is refused by its status at the claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from django.db import connections
from psycopg.types.json import Jsonb

from activities import relay
from activities.admission import Exchange
from activities.admission.exchange import Offer
from tenants.context import APP
from tenants.identifiers import uuid7

_RECORD = """
    INSERT INTO activities_wake (id, tenant_id, activity_id, reason, cause, payload, fingerprint, state, due_at, merged, created_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, 'pending', %s, 0, clock_timestamp())
    ON CONFLICT (activity_id, reason, fingerprint) WHERE state = 'pending'
    DO UPDATE SET merged = activities_wake.merged + 1
    RETURNING id, merged
"""


def record(
    activity: Any,
    reason: str,
    *,
    payload: Mapping[str, Any] | None = None,
    cause: str = "wake",
    due_at: datetime | None = None,
) -> UUID:
    """Record a wake of an activity that is `created` now, and offer it after the commit. Returns the wake's id.

    `activity` is a row of Activity (a model or a `transitions.Moved`). Must run inside `tenant_scope`.
    """
    document = orjson.dumps(payload or {}, default=str, option=orjson.OPT_SORT_KEYS)
    values: list[Any] = [
        uuid7(), activity.tenant_id, activity.id, reason, cause, Jsonb(orjson.loads(document)),
        hashlib.sha256(document).hexdigest(), due_at,
    ]  # fmt: skip
    with connections[APP].cursor() as cursor:
        cursor.execute(_RECORD, values)
        wake_id: UUID = cursor.fetchone()[0]
    if due_at is None:
        offer(activity)
    return wake_id


def offer(activity: Any) -> None:
    """Offer a claimable activity to admission after the commit."""
    relay.after_commit(Exchange(offers=[Offer.of(activity)]))
