"""Checking: everything that is wrong with a schedule, each fault by its path, before a row of it is written.

The preview of a schedule that nobody has saved asks the same function, so what it complains of is what saving would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from activities.api.priorities import HIGHEST, LOWEST
from activities.states import BANDS
from agents import configuration, scheduler_settings
from agents.exceptions import RoleNotFound
from pipelines import timing
from pipelines.definition.faults import Fault, Faults, shown
from pipelines.definition.reading import Reader
from pipelines.definition.values import JsonCopier
from pipelines.models import Pipeline, Schedule
from pipelines.models.schedule import AfterOnce, Overlap, Repeat
from pipelines.schedules import contents
from pipelines.schedules.errors import InvalidSchedule
from pipelines.schedules.given import MEMBERS, TIMING
from pipelines.timing import CatchUp, Timing
from pipelines.timing.catching_up import CatchUpError

LONGEST_NAME = 200  # characters
LONGEST_DESCRIPTION = 20_000
DAY = 86_400  # seconds
MOST_ATTEMPTS = 50
STRATEGIES = ("exponential", "linear", "fixed")
ABOUT_WORK = ("name", "description", "target_type", "agent_role", "pipeline", "params")


@dataclass(frozen=True, slots=True)
class Checked:
    """A schedule as it was given, as far as it could be read, and what is wrong with it."""

    columns: Mapping[str, Any]  # of the row; to be saved only if there is no fault at all
    timing: Timing | None  # None: it has faults, which are among `faults`
    faults: list[Fault]  # of the times, the policies and the form
    faults_of_work: list[Fault]  # of the name, the target and the parameters

    def raise_if_any(self) -> None:
        """Raises `InvalidSchedule` with every fault."""
        if self.faults or self.faults_of_work:
            raise InvalidSchedule([*self.faults, *self.faults_of_work])


def check(tenant_id: UUID, members: Any) -> Checked:
    """Read the members of a schedule, as `given.MEMBERS` names them. In the caller's `tenant_scope`; writes nothing, calls nobody."""
    form, work = Faults(), Faults()
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
    work.found += contents.faults(tenant_id, columns["params"], role=columns["agent_role"])
    faults_of_work = _at_members(work.found) if members is whole else []
    return Checked(columns, when, _at_members(form.found), faults_of_work)


def _at_members(found: list[Fault]) -> list[Fault]:
    """What is missing is told at the member that is missing, where forms and callers look for it."""
    told: list[Fault] = []
    for fault in found:
        member, _, rest = fault.message.partition(" ")
        told.append(Fault(member, rest) if not fault.path and member in MEMBERS else fault)
    return told


def _times(reader: Reader, form: Faults) -> tuple[Timing | None, dict[str, Any]]:
    given = {name: reader.value(name) for name in TIMING if reader.value(name) is not None}
    default = scheduler_settings.current().timezone
    form.found += timing.faults(given, default_timezone=default)
    jitter = given.get("jitter_seconds", 0)
    if isinstance(jitter, float) and not jitter.is_integer():
        reader.fault("jitter_seconds", "must be a whole number of seconds")
    if form.found:
        return None, {"repeat": str(given.get("repeat", ""))}
    when = timing.read(given, default_timezone=default)
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
        inner.fault("max_seconds", "must not be below base_seconds")
    inner.refuse_other_keys()
    return {name: value for name, value in found.items() if value is not None}


def _priority(reader: Reader) -> int:
    """A whole number from 1 (urgent) to 20 (background), or the name of a band."""
    given = reader.value("priority")
    if given is None:
        return BANDS["normal"]
    if isinstance(given, str) and given in BANDS:
        return BANDS[given]
    if isinstance(given, bool) or not isinstance(given, int):
        reader.fault("priority", f"must be a whole number or one of {', '.join(BANDS)}")
    elif LOWEST <= given <= HIGHEST:
        return given
    else:
        reader.fault("priority", f"must be from {LOWEST} to {HIGHEST}")
    return BANDS["normal"]


def _catch_up(reader: Reader) -> int:
    given = reader.value("catch_up")
    try:
        return CatchUp.of("latest" if given is None else given).up_to
    except CatchUpError as error:
        reader.fault("catch_up", str(error))
        return 0


def _one_of(reader: Reader, key: str, options: list[str] | tuple[str, ...]) -> str | None:
    given = reader.value(key)
    if given is None or (isinstance(given, str) and given in options):
        return given
    reader.fault(key, f"must be one of {', '.join(options)}, not {shown(given)}")
    return None


def _words(about: Reader) -> dict[str, Any]:
    about.require("name")
    name = about.text("name", limit=LONGEST_NAME) or ""
    return {
        "name": name.strip(),
        "description": about.text("description", limit=LONGEST_DESCRIPTION, blank=True) or "",
    }


def _target(tenant_id: UUID, about: Reader) -> dict[str, Any]:
    """What is run. The other one must not be named."""
    kind = _one_of(about, "target_type", ("agent", "pipeline"))
    role, key = about.text("agent_role", limit=63), about.text("pipeline", limit=63)
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
        about.fault(key, f"does not belong to the target type {kind}")


def _usable_role(tenant_id: UUID, about: Reader, role: str | None) -> str | None:
    if role is None:
        return None
    if role not in configuration.known_roles():
        about.faults.unknown("agent_role", "agent role", role, configuration.known_roles())
        return None
    try:
        if not configuration.settings_for(tenant_id, role).enabled:
            about.fault("agent_role", f"the agent {shown(role)} is switched off for this tenant")
    except RoleNotFound:  # gone since the registry was asked
        about.faults.unknown("agent_role", "agent role", role, ())
        return None
    return role


def _usable_pipeline(tenant_id: UUID, about: Reader, key: str | None) -> Pipeline | None:
    if key is None:
        return None
    own = Pipeline.objects.for_tenant(tenant_id)
    found: Pipeline | None = own.filter(key=key).first()
    if found is None:
        about.faults.unknown("pipeline", "pipeline", key, list(own.values_list("key", flat=True)[:200]))
    elif not found.enabled:
        about.fault("pipeline", f"the pipeline {shown(key)} is switched off")
    return found


def row_of(tenant_id: UUID, checked: Checked) -> Schedule:
    """A row that is not saved, for what computes from rows. Its timing must have no fault."""
    return Schedule(tenant_id=tenant_id, **checked.columns)
