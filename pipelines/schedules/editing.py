"""Creates, changes, switches and deletes schedules, for the API, the admin and files alike.

Everything that is saved has passed `check`. After a change of the times the next time is computed from now; so it is when a schedule is
switched on, because times that passed while it was off are never fired. But a one-time schedule that is saved with a past time is due:
its catch-up policy decides whether it fires. Beat's row is written in the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from activities.schemas import HIGHEST, LOWEST
from activities.states import BANDS
from agents import configuration, input_schemas, scheduler_settings
from agents.exceptions import RoleNotFound
from agents.routing import role_named
from pipelines import data_sources, submission, tables, timing
from pipelines.data_sources import DataSourceError, ExpansionError, Pacing, Params, ParamsError
from pipelines.definition import DefinitionError, synonyms
from pipelines.definition.errors import Errors, InputError, at, path_of, quote_value
from pipelines.definition.parsing import read_retry
from pipelines.definition.reading import JsonCopier, Reader
from pipelines.definition.synonyms import Translation
from pipelines.exceptions import AlreadyExists, NotFound
from pipelines.models import Pipeline, Schedule
from pipelines.models.schedule import TIMING, AfterOnce, Overlap, Repeat
from pipelines.schedules import beat
from pipelines.timing import INSTANT, CatchUp, Timing
from pipelines.timing.nominal import CatchUpError
from tenants import clock, pausing
from tenants.context import current_alias, tenant_scope
from tenants.exceptions import PreconditionFailed
from tenants.identifiers import uuid7
from tenants.models import PauseKind, Tenant
from tenants.wire_json import whole_number

logger = logging.getLogger(__name__)


class InvalidSchedule(DefinitionError):
    """The schedule is invalid. `errors` lists everything that is wrong with it, with paths."""

    code = "invalid_schedule"


# Checking a schedule before it is saved. The preview of an unsaved schedule calls the same function, so it reports the errors that saving
# would report.


LONGEST_NAME = 200  # characters
LONGEST_DESCRIPTION = 20_000
DAY = 86_400  # seconds
ABOUT_WORK = ("name", "description", "target_type", "agent_role", "pipeline", "params")


@dataclass(frozen=True, slots=True)
class CheckedSchedule:
    """A schedule as far as it could be read, and its errors."""

    columns: Mapping[str, Any]  # of the row; save them only without errors
    timing: Timing | None  # None: it has errors, which are in `errors`
    errors: list[InputError]  # of the times, the policies, and the structure
    errors_of_work: list[InputError]  # of the name, the target and the parameters

    def raise_if_any(self) -> None:
        if self.errors or self.errors_of_work:
            raise InvalidSchedule([*self.errors, *self.errors_of_work])


def check(tenant_id: UUID, members: Any) -> CheckedSchedule:
    """Read the members of a schedule; synonyms are allowed. Writes nothing and calls no servers. Call it within a `tenant_scope`."""
    return check_translated(tenant_id, synonyms.translate(members, synonyms.SCHEDULE))


def check_translated(tenant_id: UUID, translation: Translation) -> CheckedSchedule:
    """Check members that are translated already. Errors have the paths before the translation."""
    checked = _check_members(tenant_id, translation.data)
    return replace(
        checked,
        errors=translation.as_written(checked.errors),
        errors_of_work=translation.as_written(checked.errors_of_work)[len(translation.errors) :],
    )


def _check_members(tenant_id: UUID, members: Any) -> CheckedSchedule:
    form, work = Errors(), Errors()
    whole: Mapping[Any, Any] = members if isinstance(members, Mapping) else {}
    about = Reader({name: whole[name] for name in ABOUT_WORK if name in whole}, "", JsonCopier(work))
    rest = {name: value for name, value in whole.items() if name not in ABOUT_WORK}
    reader = Reader(rest if members is whole else members, "", JsonCopier(form))
    when, columns = _times(reader, form)
    columns |= {
        "retry": read_retry(reader) or {},
        "timeout_seconds": reader.count("timeout_seconds", low=1, high=DAY),
        "priority": _priority(reader),
        "catch_up": {"up_to": _catch_up(reader)},
        "overlap": _one_of(reader, "overlap", Overlap.values) or Overlap.SKIP.value,
        "after_once": _one_of(reader, "after_once", AfterOnce.values) or AfterOnce.DISABLE.value,
        "enabled": reader.value("enabled") is None or reader.flag("enabled"),
    }
    for name in MEMBERS:  # includes the members of the other reader
        reader.value(name)
    reader.refuse_other_keys()
    columns |= _words(about) | _target(tenant_id, about) | {"params": about.mapping("params")}
    work.found += params_errors(
        tenant_id, columns["params"], role=columns["agent_role"], pipeline=columns["pipeline"]
    )
    errors_of_work = _at_members(work.found) if members is whole else []
    return CheckedSchedule(columns, when, _at_members(form.found), errors_of_work)


def _at_members(errors: list[InputError]) -> list[InputError]:
    """Move errors of missing members to the paths of these members, where forms and callers look for them."""
    moved: list[InputError] = []
    for error in errors:
        member, _, rest = error.message.partition(" ")
        moved.append(InputError(member, rest) if not error.path and member in MEMBERS else error)
    return moved


def _times(reader: Reader, form: Errors) -> tuple[Timing | None, dict[str, Any]]:
    values = {name: reader.value(name) for name in TIMING if reader.value(name) is not None}
    default = scheduler_settings.current().timezone
    form.found += timing.errors(values, default_timezone=default)
    jitter = values.get("jitter_seconds", 0)
    if isinstance(jitter, float) and not jitter.is_integer():
        reader.error("jitter_seconds", "must be a whole number of seconds")
    if form.found:
        return None, {"repeat": str(values.get("repeat", ""))}
    when = timing.read(values, default_timezone=default)
    return when, {
        "repeat": Repeat.ONCE if when.repeat is timing.Repeat.ONCE else Repeat.REPEATING,
        "cron": when.cron or "",
        "jitter_seconds": int(when.jitter_seconds),
        "dst_gap": when.dst_gap.value,
        "dst_fold": when.dst_fold.value,
        **{name: getattr(when, name) for name in ("interval_ms", "timezone", "start_at", "end_at")},
    }


def _priority(reader: Reader) -> int:
    """Read a whole number from 1 (urgent) to 20 (background), or the name of a band."""
    value = reader.value("priority")
    if value is None:
        return BANDS["normal"]
    if isinstance(value, str) and value in BANDS:
        return BANDS[value]
    number = whole_number(value)
    if number is None:
        reader.error("priority", f"must be a whole number or one of {', '.join(BANDS)}")
    elif LOWEST <= number <= HIGHEST:
        return number
    else:
        reader.error("priority", f"must be from {LOWEST} to {HIGHEST}")
    return BANDS["normal"]


def _catch_up(reader: Reader) -> int:
    value = reader.value("catch_up")
    try:
        return CatchUp.of("latest" if value is None else value).up_to
    except CatchUpError as error:
        reader.error("catch_up", str(error))
        return 0


def _one_of(reader: Reader, key: str, options: list[str] | tuple[str, ...]) -> str | None:
    value = reader.value(key)
    if value is None or (isinstance(value, str) and value in options):
        return value
    reader.error(key, f"must be one of {', '.join(options)}, not {quote_value(value)}")
    return None


def _words(about: Reader) -> dict[str, Any]:
    about.require("name")
    name = about.name("name", limit=LONGEST_NAME) or ""
    return {
        "name": name.strip(),
        "description": about.text("description", limit=LONGEST_DESCRIPTION, blank=True) or "",
    }


def _target(tenant_id: UUID, about: Reader) -> dict[str, Any]:
    """Read the target: an agent or a pipeline, but not both."""
    kind = _one_of(about, "target_type", ("agent", "pipeline"))
    role, key = about.name("agent_role", limit=63), about.name("pipeline", limit=63)
    about.require("target_type")
    columns: dict[str, Any] = {"target_type": kind or "", "agent_role": None, "pipeline": None}
    if kind == "agent":
        about.require("agent_role")
        _refuse(about, "pipeline", "agent")
        columns["agent_role"] = _usable_role(tenant_id, about, role)
    elif kind == "pipeline":
        about.require("pipeline")
        _refuse(about, "agent_role", "pipeline")
        columns["pipeline"] = _usable_pipeline(tenant_id, about, key)
    return columns


def _refuse(about: Reader, key: str, kind: str) -> None:
    if about.value(key) is not None:
        about.error(key, f"does not belong to the target type {kind}")


def _usable_role(tenant_id: UUID, about: Reader, role: str | None) -> str | None:
    if role is None:
        return None
    role = role_named(role)
    try:
        enabled = configuration.settings_for(tenant_id, role).enabled
    except RoleNotFound:
        about.errors.add_unknown("agent_role", "agent role", role, configuration.list_roles())
        return None
    if not enabled:
        about.error("agent_role", f"the agent {quote_value(role)} is switched off")
    return role


def _usable_pipeline(tenant_id: UUID, about: Reader, key: str | None) -> Pipeline | None:
    if key is None:
        return None
    own = Pipeline.objects.for_tenant(tenant_id)
    pipeline: Pipeline | None = own.filter(key=key).first()
    if pipeline is None:
        about.errors.add_unknown("pipeline", "pipeline", key, list(own.values_list("key", flat=True)[:200]))
    elif not pipeline.enabled:
        about.error("pipeline", f"the pipeline {quote_value(key)} is switched off")
    return pipeline


def row_of(tenant_id: UUID, checked: CheckedSchedule) -> Schedule:
    """Return an unsaved row, for functions that need one. Its timing must be valid."""
    return Schedule(tenant_id=tenant_id, **checked.columns)


# Errors of the parameters that can be found without reading a row.
#
# Data sources must be valid, name tables and fields that the tenant may read, and have compatible options. Plain values must match the
# agent's input schema. Expanded values are checked when they are read; the preview checks the first of them.


PARAMS = "params"


def params_errors(
    tenant_id: UUID, params: Mapping[str, Any], *, role: str | None, pipeline: Pipeline | None
) -> list[InputError]:
    """Return every error with its path below `params`, or at the step with the invalid parameter. Call it within a `tenant_scope`."""
    errors: list[InputError] = []
    try:
        read = data_sources.read_params(params)
    except ParamsError as error:
        read, errors = error.readable, list(error.errors)
    errors += _errors_of_sources(tenant_id, read)
    unknown = params.keys() - read.literals.keys()  # values of data sources, which count as present
    if role:
        violations = input_schemas.violations(tenant_id, role, read.literals, unknown=unknown)
        return errors + [InputError(path_of(path), message) for path, message in violations]
    if pipeline and pipeline.enabled:
        (refused,) = submission.errors_of(tenant_id, pipeline.key, [read.literals], unknown=unknown)
        return errors + refused
    return errors


def _errors_of_sources(tenant_id: UUID, read: Params) -> list[InputError]:
    if not read.sources:
        return []
    catalogue = tables.catalogue_of(tenant_id)
    errors: list[InputError] = []
    for name, source in read.sources.items():
        try:
            data_sources.resolve(source, catalogue)
        except DataSourceError as error:
            errors += [InputError(at(PARAMS, name), str(problem)) for problem in error.errors]
    try:
        data_sources.agree([source.options for source in read.sources.values()], Pacing())
    except ExpansionError as error:
        errors.append(InputError(PARAMS, str(error)))
    return errors


# The members of a schedule, as written in the API, in the admin's form and in files.
#
# `members_of` converts a row to members, `merge_members` applies a partial change to them.


TARGET = ("target_type", "agent_role", "pipeline")
#: How each job runs, and the policies for missed and overlapping times.
WORK = ("params", "retry", "timeout_seconds", "priority", "catch_up", "overlap", "after_once")
MEMBERS = ("name", "description", *TIMING, *TARGET, *WORK, "enabled")

#: Members that exclude each other: a change that sets the first clears the others.
_EXCLUDES = {
    "cron": ("interval_ms",),
    "interval_ms": ("cron",),
    "agent_role": ("pipeline",),
    "pipeline": ("agent_role",),
}
_ONLY_REPEATING = ("cron", "interval_ms", "end_at")


def members_of(schedule: Schedule) -> dict[str, Any]:
    """Return every member, None if it is not set. Reads the pipeline's key."""
    same = {name: getattr(schedule, name) for name in MEMBERS if name not in ("cron", "pipeline", "catch_up")}
    return {
        **same,
        "cron": schedule.cron or None,
        "pipeline": schedule.pipeline.key if schedule.pipeline else None,
        "catch_up": catch_up_of(schedule),
    }


def catch_up_of(schedule: Schedule) -> str | dict[str, int]:
    """Return `none`, `latest` or `{up_to: n}`."""
    return schedule.catch_up_policy().value


def merge_members(present: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members after a partial change. Other members stay, unless the change excludes them."""
    replaced = {
        other for name, others in _EXCLUDES.items() if change.get(name) is not None for other in others
    }
    if change.get("repeat") == Repeat.ONCE:
        replaced.update(_ONLY_REPEATING)
    if change.get("enabled", True) is None:  # `enabled` has no default for null, so it stays.
        change = {name: value for name, value in change.items() if name != "enabled"}
    unchanged = {name: value for name, value in present.items() if name not in replaced}
    return {**unchanged, **change}


def create(tenant_id: UUID, members: Any, *, actor: str, now: datetime | None = None) -> Schedule:
    """Create a schedule. Raises `InvalidSchedule` with every error, and `AlreadyExists` for a name that is taken."""
    with tenant_scope(tenant_id):
        checked = check(tenant_id, members)
        checked.raise_if_any()
        schedule = Schedule(id=uuid7(), tenant_id=tenant_id, created_by=actor, **checked.columns)
        _compute_next_time(schedule, now, is_new_time=True)
        _store(schedule, is_new=True)
        _log("schedule_created", schedule, actor)
        return schedule


def change(
    tenant_id: UUID,
    schedule_id: UUID,
    members: Mapping[str, Any],
    *,
    actor: str,
    whole: bool = False,
    expected_version: int | None = None,
    now: datetime | None = None,
) -> Schedule:
    """Set these members; null means the default. Writes nothing if nothing changes.

    Other members keep their values, or with `whole` get their defaults, except `enabled`, which always keeps its value.

    Raises `NotFound`, `InvalidSchedule`, `AlreadyExists`, and `PreconditionFailed` if `expected_version` is not the current version.
    """
    with tenant_scope(tenant_id):
        schedule = lock_schedule(tenant_id, schedule_id, expected_version)
        if not whole and isinstance(members, Mapping) and members == {"enabled": False}:
            # Skip the checks, so that switching off works even if the target no longer exists.
            return _switch(schedule, False, actor, now)
        translation = synonyms.translate(members, synonyms.SCHEDULE)
        if isinstance(translation.data, Mapping):
            defaults = {name: None for name in MEMBERS if name != "enabled"} if whole else {}
            merged = merge_members(members_of(schedule), {**defaults, **translation.data})
            translation = replace(translation, data=merged)
        checked = check_translated(tenant_id, translation)
        checked.raise_if_any()
        before = {name: getattr(schedule, name) for name in checked.columns}
        if before == dict(checked.columns):
            return schedule
        for name, value in checked.columns.items():
            setattr(schedule, name, value)
        times_changed = any(before[name] != checked.columns[name] for name in TIMING)
        if times_changed or schedule.enabled != before["enabled"]:
            is_new_time = before["start_at"] != schedule.start_at or before["repeat"] != schedule.repeat
            _compute_next_time(schedule, now, is_new_time=is_new_time)
        _store(schedule)
        _log("schedule_changed", schedule, actor)
        return schedule


def set_enabled(
    tenant_id: UUID, schedule_id: UUID, enabled: bool, *, actor: str, now: datetime | None = None
) -> Schedule:
    """Switch a schedule on or off. Its executions continue. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        return _switch(lock_schedule(tenant_id, schedule_id), enabled, actor, now)


def delete(tenant_id: UUID, schedule_id: UUID, *, actor: str) -> None:
    """Delete a schedule and the record of its times. Its executions stay and continue. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        schedule = lock_schedule(tenant_id, schedule_id)
        _log("schedule_deleted", schedule, actor)
        remove(schedule, actor=actor)


def remove(schedule: Schedule, *, actor: str) -> None:
    """Delete a locked schedule with beat's row and its pause, which would hold its work for ever."""
    beat.forget(schedule)
    pausing.switch_part(
        schedule.tenant_id, PauseKind.SCHEDULE, schedule.pk, name=schedule.name, paused=False, actor=actor
    )
    schedule.delete()


def _switch(schedule: Schedule, enabled: bool, actor: str, now: datetime | None) -> Schedule:
    if schedule.enabled == enabled:
        return schedule
    schedule.enabled = enabled
    _compute_next_time(schedule, now, is_new_time=False)
    _store(schedule)
    _log("schedule_enabled" if enabled else "schedule_disabled", schedule, actor)
    return schedule


def lock_schedule(tenant_id: UUID, schedule_id: UUID, expected_version: int | None = None) -> Schedule:
    """Return the schedule, locked until the end of the transaction. Raises `NotFound`, `PreconditionFailed`."""
    rows = Schedule.objects.for_tenant(tenant_id).select_related("pipeline").select_for_update(of=("self",))
    schedule: Schedule = rows.get_or_raise(NotFound, "schedule", schedule_id)
    if expected_version is not None and schedule.version != expected_version:
        raise PreconditionFailed(
            f"The schedule is now at version {schedule.version}, not {expected_version}."
        )
    return schedule


def _compute_next_time(schedule: Schedule, now: datetime | None, *, is_new_time: bool) -> None:
    """Set `looked_until` and the next time."""
    now = now or clock.now()
    schedule.looked_until = now
    if schedule.repeat == Repeat.ONCE and is_new_time and schedule.start_at is not None:
        schedule.looked_until = min(now, schedule.start_at - INSTANT)
    schedule.next_run_at = schedule.next_time(after=schedule.looked_until) if schedule.enabled else None


def _store(schedule: Schedule, *, is_new: bool = False) -> None:
    """Write the row and beat's. Raises `AlreadyExists`."""
    if not is_new:
        schedule.version += 1
        schedule.updated_at = Now()
    try:
        with transaction.atomic(using=current_alias()):
            schedule.save(force_insert=is_new, force_update=not is_new)
    except IntegrityError as error:
        if "schedule_name_once" not in str(error):
            raise
        raise AlreadyExists("schedule", schedule.name) from error
    slug = Tenant.objects.values_list("slug", flat=True).get(pk=schedule.tenant_id)
    beat.sync(schedule, slug)
    schedule.refresh_from_db()


def _log(action: str, schedule: Schedule, actor: str) -> None:
    facts = {
        "action": action,
        "tenant": str(schedule.tenant_id),
        "schedule": str(schedule.pk),
        "actor": actor,
    }
    logger.info("Schedule saved", extra=facts)
