"""Saving: schedules made, changed, switched and deleted, by the API, the admin and files alike.

What is saved has passed `check`. A change of the times computes the next time from now on; so does switching on, since what passes
while a schedule is off is not made up for. Only a one-time schedule whose time has passed when it is given that time is still due: its
policy of catching up decides what becomes of it. Beat's row is written in the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from activities.schemas import HIGHEST, LOWEST
from activities.states import BANDS
from agents import configuration, input_schemas, scheduler_settings
from agents.exceptions import RoleNotFound
from pipelines import data_sources, submission, tables, timing
from pipelines.data_sources import DataSourceError, ExpansionError, Pacing, Params, ParamsError
from pipelines.definition import DefinitionError, synonyms
from pipelines.definition.errors import Errors, InputError, at, quote_value
from pipelines.definition.reading import JsonCopier, Reader
from pipelines.definition.synonyms import Translation
from pipelines.exceptions import AlreadyExists, NotFound, ScheduleChanged
from pipelines.models import Pipeline, Schedule
from pipelines.models.schedule import TIMING, AfterOnce, Overlap, Repeat
from pipelines.schedules import beat
from pipelines.timing import CatchUp, Timing
from pipelines.timing.nominal import CatchUpError
from tenants import clock, pausing
from tenants.context import current_alias, tenant_scope
from tenants.identifiers import uuid7
from tenants.models import PauseKind, Tenant

logger = logging.getLogger(__name__)


class InvalidSchedule(DefinitionError):
    """The schedule cannot be accepted. `errors` names everything that is wrong with it by its path."""

    code = "invalid_schedule"


# Checking: everything that is wrong with a schedule, each error by its path, before a row of it is written.
#
# The preview of a schedule that nobody has saved asks the same function, so what it complains of is what saving would refuse.


LONGEST_NAME = 200  # characters
LONGEST_DESCRIPTION = 20_000
DAY = 86_400  # seconds
MOST_ATTEMPTS = 50
STRATEGIES = ("exponential", "linear", "fixed")
ABOUT_WORK = ("name", "description", "target_type", "agent_role", "pipeline", "params")


@dataclass(frozen=True, slots=True)
class CheckedSchedule:
    """A schedule as it was given, as far as it could be read, and what is wrong with it."""

    columns: Mapping[str, Any]  # of the row; to be saved only if there is no error at all
    timing: Timing | None  # None: it has errors, which are among `errors`
    errors: list[InputError]  # of the times, the policies and the form
    errors_of_work: list[InputError]  # of the name, the target and the parameters

    def raise_if_any(self) -> None:
        """Raises `InvalidSchedule` with every error."""
        if self.errors or self.errors_of_work:
            raise InvalidSchedule([*self.errors, *self.errors_of_work])


def check(tenant_id: UUID, members: Any) -> CheckedSchedule:
    """Read the members of a schedule in either spelling. In the caller's `tenant_scope`; writes nothing, calls nobody."""
    return check_translated(tenant_id, synonyms.translate(members, synonyms.SCHEDULE))


def check_translated(tenant_id: UUID, spelled: Translation) -> CheckedSchedule:
    """As `check`, with members as `editing.MEMBERS` names them; errors are named as they were written before the translation."""
    checked = _check_members(tenant_id, spelled.data)
    return replace(
        checked,
        errors=spelled.as_written(checked.errors),
        errors_of_work=spelled.as_written(checked.errors_of_work)[len(spelled.errors) :],
    )


def _check_members(tenant_id: UUID, members: Any) -> CheckedSchedule:
    form, work = Errors(), Errors()
    whole: Mapping[Any, Any] = members if isinstance(members, Mapping) else {}
    about = Reader({name: whole[name] for name in ABOUT_WORK if name in whole}, "", JsonCopier(work))
    rest = {name: value for name, value in whole.items() if name not in ABOUT_WORK}
    reader = Reader(rest if members is whole else members, "", JsonCopier(form))
    when, columns = _times(reader, form)
    columns |= _policies(reader)
    for name in MEMBERS:  # those of the other reader are known as well
        reader.value(name)
    reader.refuse_other_keys()
    columns |= _words(about) | _target(tenant_id, about) | {"params": about.mapping("params")}
    work.found += params_errors(
        tenant_id, columns["params"], role=columns["agent_role"], pipeline=columns["pipeline"]
    )
    errors_of_work = _at_members(work.found) if members is whole else []
    return CheckedSchedule(columns, when, _at_members(form.found), errors_of_work)


def _at_members(found: list[InputError]) -> list[InputError]:
    """What is missing is reported at the missing member, where forms and callers look for it."""
    moved: list[InputError] = []
    for error in found:
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


def _policies(reader: Reader) -> dict[str, Any]:
    return {
        "retry": _retry(reader),
        "timeout_seconds": reader.count("timeout_seconds", low=1, high=DAY),
        "priority": _priority(reader),
        "catch_up": {"up_to": _catch_up(reader)},
        "overlap": _one_of(reader, "overlap", Overlap.values) or Overlap.SKIP.value,
        "after_once": _one_of(reader, "after_once", AfterOnce.values) or AfterOnce.DISABLE.value,
        "enabled": reader.value("enabled") is None or reader.flag("enabled"),
    }


def _retry(reader: Reader) -> dict[str, Any]:
    """What is given of a retry policy: the rest comes from the agent's settings, then from the defaults."""
    inner = reader.inner("retry")
    if inner is None:
        return {}
    found = {
        "max_attempts": inner.count("max_attempts", low=1, high=MOST_ATTEMPTS),
        "strategy": _one_of(inner, "strategy", STRATEGIES),
        "base_seconds": inner.amount("base_seconds", low=0, high=DAY),
        "multiplier": inner.amount("multiplier", low=1, high=100),
        "max_seconds": inner.amount("max_seconds", low=0, high=DAY),
        "jitter": inner.amount("jitter", low=0, high=1),
    }
    longest, base = found["max_seconds"], found["base_seconds"]
    if longest is not None and base is not None and longest < base:  # type: ignore[operator]  # both are numbers
        inner.error("max_seconds", "must not be below base_seconds")
    inner.refuse_other_keys()
    return {name: value for name, value in found.items() if value is not None}


def _priority(reader: Reader) -> int:
    """A whole number from 1 (urgent) to 20 (background), or the name of a band."""
    value = reader.value("priority")
    if value is None:
        return BANDS["normal"]
    if isinstance(value, str) and value in BANDS:
        return BANDS[value]
    if isinstance(value, bool) or not isinstance(value, int):
        reader.error("priority", f"must be a whole number or one of {', '.join(BANDS)}")
    elif LOWEST <= value <= HIGHEST:
        return value
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
    """What is run. The other one must not be named."""
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
    if role not in configuration.list_roles():
        about.errors.add_unknown("agent_role", "agent role", role, configuration.list_roles())
        return None
    try:
        if not configuration.settings_for(tenant_id, role).enabled:
            about.error("agent_role", f"the agent {quote_value(role)} is switched off for this tenant")
    except RoleNotFound:  # gone since the registry was asked
        about.errors.add_unknown("agent_role", "agent role", role, ())
        return None
    return role


def _usable_pipeline(tenant_id: UUID, about: Reader, key: str | None) -> Pipeline | None:
    if key is None:
        return None
    own = Pipeline.objects.for_tenant(tenant_id)
    found: Pipeline | None = own.filter(key=key).first()
    if found is None:
        about.errors.add_unknown("pipeline", "pipeline", key, list(own.values_list("key", flat=True)[:200]))
    elif not found.enabled:
        about.error("pipeline", f"the pipeline {quote_value(key)} is switched off")
    return found


def row_of(tenant_id: UUID, checked: CheckedSchedule) -> Schedule:
    """A row that is not saved, for what computes from rows. Its timing must have no error."""
    return Schedule(tenant_id=tenant_id, **checked.columns)


# What is wrong with the parameters of a schedule, as far as it can be known without reading a row.
#
# Data sources must be written as they are to be, name tables and fields that the tenant may read, and agree with each other. Values as
# they are must suit the agent's input schema. Whether expanded values do is seen when they are there: the preview looks at the first of
# them.


PARAMS = "params"


def params_errors(
    tenant_id: UUID, params: Mapping[str, Any], *, role: str | None, pipeline: Pipeline | None
) -> list[InputError]:
    """Every fault with its path below `params`, or at the step whose own parameter is wrong. In the caller's `tenant_scope`."""
    try:
        read = data_sources.read_params(params)
    except ParamsError as error:
        return error.errors
    found = _of_sources(tenant_id, read)
    if role:
        return found + _of_values(tenant_id, role, read)
    if pipeline and pipeline.enabled:
        (refused,) = submission.errors_of(
            tenant_id, pipeline.key, [read.literals], unknown=read.sources.keys()
        )
        return found + refused
    return found


def _of_sources(tenant_id: UUID, read: Params) -> list[InputError]:
    if not read.sources:
        return []
    catalogue = tables.catalogue_of(tenant_id)
    found: list[InputError] = []
    for name, source in read.sources.items():
        try:
            data_sources.resolve(source, catalogue)
        except DataSourceError as error:
            found += [InputError(at(PARAMS, name), str(problem)) for problem in error.errors]
    try:
        data_sources.agree([source.options for source in read.sources.values()], Pacing())
    except ExpansionError as error:
        found.append(InputError(PARAMS, str(error)))
    return found


def _of_values(tenant_id: UUID, role: str, read: Params) -> list[InputError]:
    """What the agent's schema says about the values as they are. A data source counts as given, whatever it will be."""
    found = input_schemas.violations(tenant_id, role, read.literals, unknown=read.sources.keys())
    return [InputError(_path(path), message) for path, message in found]


def _path(parts: tuple[str | int, ...]) -> str:
    found = ""
    for part in parts:
        found = at(found, part)
    return found


# The members of a schedule as people write them: by the API, in the admin's form and in files.
#
# A row holds the same in columns. `members_of` leads from the row to the members, `merge_members` lays a partial change over them.


TARGET = ("target_type", "agent_role", "pipeline")
#: How each job goes, and what becomes of times at which something else is in the way.
WORK = ("params", "retry", "timeout_seconds", "priority", "catch_up", "overlap", "after_once")
MEMBERS = ("name", "description", *TIMING, *TARGET, *WORK, "enabled")

#: Members that exclude each other: a change that names the first empties the others.
_INSTEAD = {
    "cron": ("interval_ms",),
    "interval_ms": ("cron",),
    "agent_role": ("pipeline",),
    "pipeline": ("agent_role",),
}
_ONLY_REPEATING = ("cron", "interval_ms", "end_at")


def members_of(schedule: Schedule) -> dict[str, Any]:
    """Every member, with null where nothing is set. Reads the pipeline's key."""
    same = {name: getattr(schedule, name) for name in MEMBERS if name not in ("cron", "pipeline", "catch_up")}
    return {
        **same,
        "cron": schedule.cron or None,
        "pipeline": schedule.pipeline.key if schedule.pipeline else None,
        "catch_up": catch_up_of(schedule),
    }


def catch_up_of(schedule: Schedule) -> str | dict[str, int]:
    """`none`, `latest` or `{up_to: n}`."""
    return schedule.catch_up_policy().value


def merge_members(present: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The members after a partial change. What the change does not name stays, unless what it names takes its place."""
    replaced = {
        other for name, others in _INSTEAD.items() if change.get(name) is not None for other in others
    }
    if change.get("repeat") == Repeat.ONCE:
        replaced.update(_ONLY_REPEATING)
    if change.get("enabled", True) is None:  # The switch has no default to go back to: it stays.
        change = {name: value for name, value in change.items() if name != "enabled"}
    stays = {name: value for name, value in present.items() if name not in replaced}
    return {**stays, **change}


INSTANT = timedelta(microseconds=1)


def create(tenant_id: UUID, members: Any, *, actor: str, now: datetime | None = None) -> Schedule:
    """A new schedule. Raises `InvalidSchedule` with every error, and `AlreadyExists` for a name that is taken."""
    with tenant_scope(tenant_id):
        checked = check(tenant_id, members)
        checked.raise_if_any()
        schedule = Schedule(id=uuid7(), tenant_id=tenant_id, created_by=actor, **checked.columns)
        _compute_next_time(schedule, now or clock.now(), is_new_time=True)
        _store(schedule, is_new=True)
        _tell("schedule_created", schedule, actor)
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
    """Set these members; others stay as they are, and null is the default. Nothing is written when nothing changes.

    With `whole` the members are all of the schedule: what is left out has its default, but for `enabled`, which stays.

    Raises `NotFound`, `InvalidSchedule`, `AlreadyExists`, and `ScheduleChanged` when `expected_version` is not the present one.
    """
    with tenant_scope(tenant_id):
        schedule = _lock_schedule(tenant_id, schedule_id, expected_version)
        if not whole and isinstance(members, Mapping) and members == {"enabled": False}:
            # Switching off works even when the target has gone meanwhile.
            return _switch(schedule, False, actor, now)
        spelled = synonyms.translate(members, synonyms.SCHEDULE)
        if isinstance(spelled.data, Mapping):
            unsaid = {name: None for name in MEMBERS if name != "enabled"} if whole else {}
            members_now = merge_members(members_of(schedule), {**unsaid, **spelled.data})
            spelled = replace(spelled, data=members_now)
        checked = check_translated(tenant_id, spelled)
        checked.raise_if_any()
        before = {name: getattr(schedule, name) for name in checked.columns}
        if before == dict(checked.columns):
            return schedule
        for name, value in checked.columns.items():
            setattr(schedule, name, value)
        times_changed = any(before[name] != checked.columns[name] for name in TIMING)
        if times_changed or schedule.enabled != before["enabled"]:
            is_new_time = before["start_at"] != schedule.start_at or before["repeat"] != schedule.repeat
            _compute_next_time(schedule, now or clock.now(), is_new_time=is_new_time)
        _store(schedule)
        _tell("schedule_changed", schedule, actor)
        return schedule


def set_enabled(
    tenant_id: UUID, schedule_id: UUID, enabled: bool, *, actor: str, now: datetime | None = None
) -> Schedule:
    """Switch a schedule on or off. What is under way goes on. Raises `NotFound`."""
    with tenant_scope(tenant_id):
        return _switch(_lock_schedule(tenant_id, schedule_id), enabled, actor, now)


def delete(tenant_id: UUID, schedule_id: UUID, *, actor: str, expected_version: int | None = None) -> None:
    """The schedule and the record of its times go; its executions stay, and what is under way goes on.

    Raises `NotFound`, and `ScheduleChanged` as `change` does.
    """
    with tenant_scope(tenant_id):
        schedule = _lock_schedule(tenant_id, schedule_id, expected_version)
        beat.forget(schedule)
        pausing.switch_part(
            tenant_id, PauseKind.SCHEDULE, schedule.pk, name=schedule.name, paused=False, actor=actor
        )
        _tell("schedule_deleted", schedule, actor)
        schedule.delete()


def _switch(schedule: Schedule, enabled: bool, actor: str, now: datetime | None) -> Schedule:
    if schedule.enabled == enabled:
        return schedule
    schedule.enabled = enabled
    _compute_next_time(schedule, now or clock.now(), is_new_time=False)
    _store(schedule)
    _tell("schedule_enabled" if enabled else "schedule_disabled", schedule, actor)
    return schedule


def _lock_schedule(tenant_id: UUID, schedule_id: UUID, expected_version: int | None = None) -> Schedule:
    rows = Schedule.objects.for_tenant(tenant_id).select_related("pipeline").select_for_update(of=("self",))
    found: Schedule | None = rows.filter(pk=schedule_id).first()
    if found is None:
        raise NotFound("schedule", schedule_id)
    if expected_version is not None and found.version != expected_version:
        raise ScheduleChanged(f"The schedule is at version {found.version} by now, not {expected_version}.")
    return found


def _compute_next_time(schedule: Schedule, now: datetime, *, is_new_time: bool) -> None:
    """From when on times count, and the first of them."""
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
    beat.keep_in_step(schedule, slug)
    schedule.refresh_from_db()


def _tell(action: str, schedule: Schedule, actor: str) -> None:
    facts = {
        "action": action,
        "tenant": str(schedule.tenant_id),
        "schedule": str(schedule.pk),
        "actor": actor,
    }
    logger.info("Schedule saved", extra=facts)
