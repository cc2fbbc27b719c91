"""The outcome of the last check, kept in Redis for the metrics. Losing it loses nothing: the next check writes it anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson

from activities.invariants import keys
from activities.invariants.concerned import tenants_of
from activities.invariants.report import Report
from tenants import clock
from tenants.redis import client

KEPT_SECONDS = 86_400  # an older outcome says nothing about now


def remember(report: Report) -> None:
    """Keep what was found. Raises `redis.RedisError`."""
    counts = dict.fromkeys(report.held, 0) | {
        violation.invariant: violation.count for violation in report.violations
    }
    concerned = {violation.invariant: tenants_of(violation.sample_ids) for violation in report.violations}
    outcome = {"at": clock.now().timestamp(), "violations": counts, "tenants": concerned}
    client().set(keys.outcome(), orjson.dumps(outcome), ex=KEPT_SECONDS)


def last_known() -> tuple[float, Mapping[str, int]] | None:
    """When the last check ran (Unix seconds), and its violations by invariant. Raises `redis.RedisError`."""
    document = _kept()
    return (document["at"], document["violations"]) if document else None


def tenants_concerned(invariant: str) -> list[UUID]:
    """Whose rows are among the first that broke the invariant at the last check. Raises `redis.RedisError`."""
    return [UUID(tenant) for tenant in _kept().get("tenants", {}).get(invariant, [])]


def _kept() -> dict[str, Any]:
    """Empty when there was no check lately."""
    kept: Any = client().get(keys.outcome())
    document: dict[str, Any] = orjson.loads(kept) if kept else {}
    return document
