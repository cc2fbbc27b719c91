"""The forecast of a schedule: when it fires next, and which jobs each time would make, were it to fire now. Nothing is written.

Times come from the function that fires, jobs from the function that expands, errors from the function that checks what is saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings

from agents import configuration
from agents.models import Agent, AgentConfig
from pipelines import timing
from pipelines.definition.errors import InputError
from pipelines.models import Schedule
from pipelines.models.schedule import Repeat
from pipelines.schedules.editing import InvalidSchedule
from pipelines.timing import Timing
from tenants import clock
from tenants.context import tenant_scope

from . import editing, expansion

MOST = 100  # times that may be asked for
USUAL = 5
INSTANT = timedelta(microseconds=1)
OVER = "All its times have passed: it never fires."
DUE_AT_ONCE = "Its time has passed: it fires as soon as it is saved."
SKIPPED_AT_ONCE = "Its time has passed and it does not catch up: it is skipped, on record."
AT_ONCE = "Of the {batch} jobs of a batch no more than {most} are at work at once: as many as the limits allow for {role}."
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
    """What a schedule will do: from `after`, else from `start_at` if that lies ahead, else from now.

    What has gone wrong with its target or its tables since it was saved is among the `errors`.
    """
    with tenant_scope(schedule.tenant_id):
        members = editing.members_of(schedule)
    found = of_members(schedule.tenant_id, members, count=count, after=after, from_now=True, present=schedule)
    over = schedule.enabled and schedule.next_run_at is None
    return replace(found, notes=[OVER] if over else found.notes)


def of_members(
    tenant_id: UUID,
    members: Any,
    *,
    count: int = USUAL,
    after: datetime | None = None,
    from_now: bool = False,
    present: Schedule | None = None,
) -> Forecast:
    """What a schedule that nobody has saved would do: from `after`, else from `start_at`, else from now.

    With `from_now` a `start_at` that has passed is not gone back to. `present` is the schedule that it would be saved over. Errors of
    the name, the target and the parameters are among the `errors`. Raises `InvalidSchedule` for others, since without times there
    is nothing to foretell.
    """
    now = clock.now()
    with tenant_scope(tenant_id):
        checked = editing.check(tenant_id, members)
        if checked.errors or checked.timing is None:
            raise InvalidSchedule(_without_name([*checked.errors, *checked.errors_of_work]))
        schedule = editing.row_of(tenant_id, checked)
        definition = expansion.definition_of(schedule)
    # Outside of the transaction: a source may have to be fetched from somewhere.
    start = schedule.start_at - INSTANT if schedule.start_at and not from_now else _beginning(schedule, now)
    notes = _notes(schedule, checked.timing, now, present)
    found = _of(schedule, checked.timing, definition, after or start, now, count, notes)
    refused = [
        {"path": problem.path, "message": problem.message}
        for problem in _without_name(checked.errors_of_work)
    ]
    return replace(found, errors=refused + [error for error in found.errors if not _is_named(error, refused)])


def coming(schedule: Schedule, *, count: int, now: datetime | None = None) -> list[datetime]:
    """The next nominal times of a schedule's row, whether it is enabled or not."""
    begin = _beginning(schedule, now or clock.now())
    return list(timing.times(schedule.timing(), after=begin, limit=count))


def _beginning(schedule: Schedule, now: datetime) -> datetime:
    """Just before the first time of interest. A one-time schedule is always about its one time."""
    if schedule.start_at and (schedule.start_at > now or schedule.repeat == Repeat.ONCE):
        return schedule.start_at - INSTANT
    return now


def _is_named(error: dict[str, str], named: list[dict[str, str]]) -> bool:
    """Whether an error of a job, `jobs[0].params.x`, is one of the parameters themselves, `params.x`."""
    path = re.sub(r"^jobs\[\d+\]\.", "", error["path"])
    return {"path": path, "message": error["message"]} in named


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
        notes=[*notes, *_fewer_at_once(schedule, definition, work)],
    )


def _fewer_at_once(schedule: Schedule, definition: Mapping[str, Any], work: expansion.Preview) -> list[str]:
    """That a batch is larger than what the tenant may have at work at once, if it is."""
    role = definition.get("agent_role")
    if not role or work.in_a_batch < 2:
        return []
    with tenant_scope(schedule.tenant_id):
        agent = Agent.objects.filter(role=role).first()
        if agent is None:  # reported where the target is checked
            return []
        own = AgentConfig.objects.for_tenant(schedule.tenant_id).filter(agent=agent).first()
        tenant = configuration.tenant_with_plan(schedule.tenant_id)
    everything = settings.ORCHESTRATOR_MAX_CONCURRENCY or None
    caps = (configuration.cap_of(tenant, agent, own), tenant.cap, agent.max_concurrency, everything)
    most = min(cap for cap in caps if cap is not None)
    if most >= work.in_a_batch:
        return []
    return [AT_ONCE.format(batch=work.in_a_batch, most=most, role=role)]


def _notes(schedule: Schedule, when: Timing, now: datetime, present: Schedule | None) -> list[str]:
    """What somebody should know before saving."""
    if not schedule.enabled:
        return [SWITCHED_OFF]
    if schedule.repeat == Repeat.ONCE and schedule.start_at and schedule.start_at <= now:
        if present and (present.repeat, present.start_at) == (schedule.repeat, schedule.start_at):
            return [] if present.enabled and present.next_run_at else [OVER]
        return [DUE_AT_ONCE if schedule.catch_up_policy().up_to else SKIPPED_AT_ONCE]
    return [] if any(timing.times(when, after=now, limit=1)) else [OVER]


def _without_name(found: list[InputError]) -> list[InputError]:
    """A schedule may be looked at before it has a name."""
    return [error for error in found if error.path != "name"]
