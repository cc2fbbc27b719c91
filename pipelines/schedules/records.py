"""The records of times: one for each, and one for a long row of those that were missed."""

from __future__ import annotations

from datetime import datetime, timedelta

from pipelines import timing
from pipelines.models import Firing
from pipelines.models.firing import FiringState
from pipelines.schedules.looking import INSTANT, Look
from pipelines.timing import Timing

LISTED = 1_000  # times skipped in one row that get a record each; more of them share one
MISSED = "The time had passed, and the schedule does not catch up on it."


def missed_times(look: Look) -> list[Firing]:
    """Each missed time by itself; a long row of them, as after a month without power, as one record."""
    count = look.missed.skipped_count
    if count <= LISTED:
        return [record_of(look, nominal, FiringState.SKIPPED, MISSED) for nominal in look.missed.skipped()]
    to_fire = look.missed.to_fire
    row = record_of(look, next(look.missed.skipped()), FiringState.SKIPPED, MISSED)
    row.last_at, row.count = _latest(look.timing, to_fire[0] - INSTANT if to_fire else look.until), count
    return [row]


def _latest(plan: Timing, until: datetime) -> datetime:
    """The last time up to `until`, found without going through all before it. There is one."""
    span = timedelta(minutes=1)
    while True:
        found = list(timing.times(plan, after=until - span, until=until))
        if found:
            return found[-1]
        span *= 2


def record_of(look: Look, nominal: datetime, state: str, reason: str) -> Firing:
    tenant_id = look.schedule.tenant_id
    return Firing(tenant_id=tenant_id, schedule_id=look.key, nominal_at=nominal, state=state, reason=reason)
