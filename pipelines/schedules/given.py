"""The members of a schedule as people write them: by the API, in the admin's form and in files.

A row holds the same in columns. `members_of` leads from the row to the members, `merged` lays a partial change over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.models import Schedule
from pipelines.models.schedule import Repeat
from pipelines.schedules import plans

#: What says when. A change of any of these makes the next time anew.
TIMING = (
    "repeat",
    "cron",
    "interval_ms",
    "timezone",
    "start_at",
    "end_at",
    "dst_gap",
    "dst_fold",
    "jitter_seconds",
)
TARGET = ("target_type", "agent_role", "pipeline")
#: How each job goes, and what becomes of times at which something else is in the way.
WORK = ("params", "retry", "timeout_seconds", "priority", "catch_up", "overlap", "after_once")
MEMBERS = ("name", "description", *TIMING, *TARGET, *WORK, "enabled")

#: Members that exclude each other: whoever gives the first means to leave the others.
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
    return plans.catch_up_of(schedule).value


def merged(present: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
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
