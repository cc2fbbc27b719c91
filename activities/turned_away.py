"""Counts what was turned away at the door, dropped to make room, or given up because its time had passed: by tenant, role and reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from uuid import UUID

from activities.models import TurnedAway
from tenants.context import APP, SYSTEM
from tenants.identifiers import uuid7
from tenants.sql import Statement

Reason = TurnedAway.Reason

REFUSALS_WRITTEN_SECONDS = 1.0

_COUNT = Statement.load(Path(__file__).parent / "sql", "count_turned_away")

_refused: dict[UUID, Counter[str]] = {}
_written: dict[UUID, float] = {}
_lock = Lock()


def count(tenant_id: UUID, reason: Reason, roles: Mapping[str, int]) -> None:
    """In the caller's transaction, so that nothing is counted that did not happen."""
    _write(tenant_id, reason, roles, using=APP)


def refused(tenant_id: UUID, roles: Iterable[str]) -> None:
    """A submission is about to be refused, with its transaction: counted in one of its own.

    Written at most once a second by each process, so that a flood of refusals costs little; those of its last second are written with the
    next refusal.
    """
    with _lock:
        counts = _refused.setdefault(tenant_id, Counter())
        counts.update(roles)
        now = time.monotonic()
        if now - _written.get(tenant_id, -1e9) < REFUSALS_WRITTEN_SECONDS:
            return
        _written[tenant_id] = now
        del _refused[tenant_id]
    _write(tenant_id, Reason.REJECTED, counts, using=SYSTEM)


def _write(tenant_id: UUID, reason: Reason, roles: Mapping[str, int], *, using: str) -> None:
    found = sorted(roles.items())
    if found:
        ids = [uuid7() for _ in found]
        names, counts = [role for role, _ in found], [number for _, number in found]
        parameters = {
            "tenant": tenant_id,
            "reason": reason.value,
            "ids": ids,
            "roles": names,
            "counts": counts,
        }
        _COUNT.run(parameters, using=using)
