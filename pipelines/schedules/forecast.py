"""The forecast of a schedule: when it fires next, and which jobs each time would make, were it to fire now. Nothing is written.

Times come from the function that fires, jobs from the function that expands, faults from the function that checks what is saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pipelines import timing
from pipelines.definition.faults import Fault
from pipelines.models import Schedule
from pipelines.models.schedule import Repeat
from pipelines.schedules import checking, expansion, plans, targets
from pipelines.schedules.errors import InvalidSchedule
from pipelines.timing import Timing
from tenants.context import tenant_scope

MOST = 100  # times that may be asked for
USUAL = 5
INSTANT = timedelta(microseconds=1)
SWITCHED_OFF = "It is switched off, so none of this happens before it is switched on."


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would happen. `fires_at` are nominal times in UTC; the schedule's jitter comes on top."""

    fires_at: tuple[datetime, ...]
    timezone: str
    in_words: str
    jobs: int
    batches: int
    ends_after: timedelta  # from the first batch until the last one starts
    sample: list[dict[str, Any]]
    errors: list[dict[str, str]]
    notes: list[str]


def of_saved(schedule: Schedule, *, count: int = USUAL, after: datetime | None = None) -> Forecast:
    """What a schedule will do, enabled or not: from `after`, else from `start_at` if that lies ahead, else from now."""
    now = datetime.now(UTC)
    with tenant_scope(schedule.tenant_id):
        definition = targets.definition_of(schedule)
    when = plans.timing_of(schedule)
    notes = [] if schedule.enabled else [SWITCHED_OFF]
    return _of(schedule, when, definition, after or _beginning(schedule, now), now, count, notes)


def of_members(
    tenant_id: UUID,
    members: Any,
    *,
    count: int = USUAL,
    after: datetime | None = None,
    from_now: bool = False,
) -> Forecast:
    """What a schedule that nobody has saved would do: from `after`, else from `start_at`, else from now.

    With `from_now` a `start_at` that has passed is not gone back to. Faults of the name, the target and the parameters are among
    the `errors`. Raises `InvalidSchedule` for others, since without times there is nothing to foretell.
    """
    now = datetime.now(UTC)
    with tenant_scope(tenant_id):
        checked = checking.check(tenant_id, members)
        if checked.faults or checked.timing is None:
            raise InvalidSchedule(_without_name([*checked.faults, *checked.faults_of_work]))
        schedule = checking.row_of(tenant_id, checked)
        definition = targets.definition_of(schedule)
    # Outside of the transaction: a source may have to be fetched from somewhere.
    start = schedule.start_at - INSTANT if schedule.start_at and not from_now else _beginning(schedule, now)
    notes = _notes(schedule, checked.timing, now)
    found = _of(schedule, checked.timing, definition, after or start, now, count, notes)
    refused = [
        {"path": fault.path, "message": fault.message} for fault in _without_name(checked.faults_of_work)
    ]
    return replace(found, errors=refused + [error for error in found.errors if not _is_told(error, refused)])


def coming(schedule: Schedule, *, count: int, now: datetime | None = None) -> list[datetime]:
    """The next nominal times of a schedule's row, whether it is enabled or not."""
    begin = _beginning(schedule, now or datetime.now(UTC))
    return list(timing.times(plans.timing_of(schedule), after=begin, limit=count))


def _beginning(schedule: Schedule, now: datetime) -> datetime:
    """Just before the first time of interest. A one-time schedule is always about its one time."""
    if schedule.start_at and (schedule.start_at > now or schedule.repeat == Repeat.ONCE):
        return schedule.start_at - INSTANT
    return now


def _is_told(error: dict[str, str], told: list[dict[str, str]]) -> bool:
    """Whether a fault of a job, `jobs[0].params.x`, is one of the parameters themselves, `params.x`."""
    path = re.sub(r"^jobs\[\d+\]\.", "", error["path"])
    return {"path": path, "message": error["message"]} in told


def _of(
    schedule: Schedule,
    when: Timing,
    definition: Mapping[str, Any],
    after: datetime,
    now: datetime,
    count: int,
    notes: list[str],
) -> Forecast:
    fires_at = tuple(timing.times(when, after=after, limit=count))
    work = expansion.preview(schedule.tenant_id, definition, asked_at=now)
    return Forecast(
        fires_at=fires_at,
        timezone=when.timezone,
        in_words=timing.in_words(when),
        jobs=work.jobs,
        batches=work.batches,
        ends_after=work.ends_after,
        sample=list(work.sample),
        errors=list(work.errors),
        notes=notes,
    )


def _notes(schedule: Schedule, when: Timing, now: datetime) -> list[str]:
    """What somebody should know before saving."""
    if not schedule.enabled:
        return [SWITCHED_OFF]
    if schedule.repeat == Repeat.ONCE and schedule.start_at and schedule.start_at <= now:
        catches_up = plans.catch_up_of(schedule).up_to > 0
        return [
            "Its time has passed: it fires as soon as it is saved."
            if catches_up
            else "Its time has passed and it does not catch up: it is skipped, on record."
        ]
    if not any(timing.times(when, after=now, limit=1)):
        return ["All its times have passed: it never fires."]
    return []


def _without_name(found: list[Fault]) -> list[Fault]:
    """A schedule may be looked at before it has a name."""
    return [fault for fault in found if fault.path != "name"]
