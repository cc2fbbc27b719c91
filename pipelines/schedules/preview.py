"""Forecasts when a schedule fires next, and the jobs of each execution with the current rows. Writes nothing.

Uses the same functions as firing, expanding and saving a schedule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import pauses
from agents import configuration
from agents.models import Agent, AgentConfig
from pipelines import timing, versions
from pipelines.definition.errors import InputError
from pipelines.models import Schedule
from pipelines.models.schedule import Repeat
from pipelines.schedules import editing, expansion
from pipelines.schedules.editing import InvalidSchedule
from pipelines.timing import INSTANT, Timing
from tenants import clock, pausing
from tenants.context import tenant_scope
from tenants.models import PauseKind, Tenant

MOST = 100  # times that may be requested
USUAL = 5
OVER = "All its times have passed: it never fires."
DUE_AT_ONCE = "Its time has passed: it fires as soon as it is saved."
SKIPPED_AT_ONCE = "Its time has passed and it does not catch up: the time is recorded as skipped."
AT_ONCE = (
    "At most {most} of the {batch} jobs of a batch run at the same time, because of the limits for {role}."
)
SWITCHED_OFF = "It is switched off, so it does not fire until it is switched on."
PAUSED = "It is paused, so it does not fire until it is resumed. Times in between count as missed."
TENANT_PAUSED = (
    "The tenant is paused, so it does not fire until the tenant is resumed. Times in between count as missed."
)
WORK_WAITS = "{who} is {how}: the schedule fires, but work that needs it waits."


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a schedule. `fires_at` are nominal times in UTC, without the schedule's jitter."""

    fires_at: tuple[datetime, ...]
    timezone: str
    in_words: str
    jobs: int
    batches: int
    ends_after: timedelta  # from the first batch until the last one starts
    sample: list[dict[str, Any]]
    errors: list[dict[str, str]]
    notes: list[str]


def forecast_saved(schedule: Schedule, *, count: int = USUAL, after: datetime | None = None) -> Forecast:
    """Forecast a saved schedule: from `after`, else from `start_at` if that is in the future, else from now.

    `errors` include problems of its target and its tables that have appeared since it was saved.
    """
    with tenant_scope(schedule.tenant_id):
        members = editing.members_of(schedule)
        same = Schedule.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pk)
        paused = pausing.with_pauses(same, PauseKind.SCHEDULE).filter(paused=True).exists()
    forecast = forecast_members(
        schedule.tenant_id, members, count=count, after=after, from_now=True, present=schedule
    )
    over = schedule.enabled and schedule.next_run_at is None
    notes = [OVER] if over else forecast.notes
    return replace(forecast, notes=[PAUSED, *notes] if paused else notes)


def forecast_members(
    tenant_id: UUID,
    members: Any,
    *,
    count: int = USUAL,
    after: datetime | None = None,
    from_now: bool = False,
    present: Schedule | None = None,
) -> Forecast:
    """Forecast an unsaved schedule: from `after`, else from `start_at`, else from now.

    With `from_now` a past `start_at` is ignored. `present` is the saved schedule that these members would replace. `errors` include those
    of the target and the parameters. Raises `InvalidSchedule` for other errors, because without times there is no forecast.
    """
    now = clock.now()
    with tenant_scope(tenant_id):
        checked = editing.check(tenant_id, members)
        if checked.errors or checked.timing is None:
            raise InvalidSchedule(_without_name([*checked.errors, *checked.errors_of_work]))
        schedule = editing.row_of(tenant_id, checked)
        definition = expansion.definition_of(schedule)
    # Outside of the transaction, because a source may have to be fetched from another server.
    start = schedule.start_at - INSTANT if schedule.start_at and not from_now else _beginning(schedule, now)
    notes = [*_notes(schedule, checked.timing, now, present), *_notes_on_pauses(schedule)]
    forecast = _forecast(schedule, checked.timing, definition, after or start, now, count, notes)
    refused = [
        {"path": problem.path, "message": problem.message}
        for problem in _without_name(checked.errors_of_work)
    ]
    further = [error for error in forecast.errors if not _is_reported(error, refused)]
    return replace(forecast, errors=refused + further)


def next_times(schedule: Schedule, *, count: int, now: datetime | None = None) -> list[datetime]:
    """Return the next nominal times of a schedule, even if it is disabled."""
    begin = _beginning(schedule, now or clock.now())
    return list(timing.times(schedule.timing(), after=begin, limit=count))


def _beginning(schedule: Schedule, now: datetime) -> datetime:
    """Return the time just before the forecast begins. A one-time schedule always begins at its one time."""
    if schedule.start_at and (schedule.start_at > now or schedule.repeat == Repeat.ONCE):
        return schedule.start_at - INSTANT
    return now


def _is_reported(error: dict[str, str], reported: list[dict[str, str]]) -> bool:
    """Whether an error of a job, `jobs[0].params.x`, is reported already for the parameters, as `params.x`."""
    path = re.sub(r"^jobs\[\d+\]\.", "", error["path"])
    return {"path": path, "message": error["message"]} in reported


def _forecast(
    schedule: Schedule,
    when: Timing,
    definition: Mapping[str, Any],
    after: datetime,
    now: datetime,
    count: int,
    notes: list[str],
) -> Forecast:
    fires_at = tuple(timing.times(when, after=after, limit=count))
    work = expansion.preview(schedule.tenant_id, definition, starts_at=now)
    return Forecast(
        fires_at=fires_at,
        timezone=when.timezone,
        in_words=timing.in_words(when),
        jobs=work.jobs,
        batches=work.batches,
        ends_after=work.ends_after,
        sample=list(work.sample),
        errors=list(work.errors),
        notes=[*notes, *_notes_on_limits(schedule, definition, work)],
    )


def _notes_on_limits(schedule: Schedule, definition: Mapping[str, Any], work: expansion.Preview) -> list[str]:
    """Return a note if a batch is larger than the number of jobs that may run at the same time."""
    role = definition.get("agent_role")
    if not role or work.in_a_batch < 2:
        return []
    with tenant_scope(schedule.tenant_id):
        agent = Agent.objects.filter(role=role).first()
        if agent is None:  # the check of the target reports this
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
    """Return notes for people, to read before they save."""
    if not schedule.enabled:
        return [SWITCHED_OFF]
    if schedule.repeat == Repeat.ONCE and schedule.start_at and schedule.start_at <= now:
        if present and (present.repeat, present.start_at) == (schedule.repeat, schedule.start_at):
            return [] if present.enabled and present.next_run_at else [OVER]
        return [DUE_AT_ONCE if schedule.catch_up_policy().up_to else SKIPPED_AT_ONCE]
    return [] if any(timing.times(when, after=now, limit=1)) else [OVER]


def _notes_on_pauses(schedule: Schedule) -> list[str]:
    """Return notes about what is paused around the schedule: its tenant, or what its work needs."""
    tenant_id = schedule.tenant_id
    with tenant_scope(tenant_id):
        roles = {schedule.agent_role} if schedule.agent_role else set()
        if schedule.pipeline is not None:
            newest = versions.newest(tenant_id, schedule.pipeline)
            roles = {step["agent_role"] for step in newest.definition["steps"] if step.get("agent_role")}
        found = pauses.find_pauses(tenant_id, roles, pipeline_id=schedule.pipeline_id)
        is_paused = Tenant.objects.filter(pk=tenant_id, paused=True).exists()
    notes = [WORK_WAITS.format(who=who, how=how) for who, how in found]
    return [TENANT_PAUSED, *notes] if is_paused else notes


def _without_name(errors: list[InputError]) -> list[InputError]:
    """Leave out errors of the name, because a schedule may be previewed before it has one."""
    return [error for error in errors if error.path != "name"]
