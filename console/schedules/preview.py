"""The form in which somebody tries out times and parameters of a schedule."""

from __future__ import annotations

from typing import Any

from django import forms

from console.internal_api import ApiForm, JsonField
from pipelines.models import Schedule
from pipelines.models.schedule import DEFAULT_TIMEZONE, Repeat


class TrialForm(ApiForm):
    """Members of a schedule that say when and with what. The API says what is wrong with them."""

    cron = forms.CharField(
        label="Cron",
        required=False,
        max_length=200,
        help_text="Minute, hour, day of the month, month, day of the week.",
    )
    interval_seconds = forms.DecimalField(label="Or every so many seconds", required=False, min_value=1)
    timezone = forms.CharField(label="Time zone", max_length=64, initial=DEFAULT_TIMEZONE)
    agent_role = forms.CharField(label="Agent", required=False, max_length=63)
    pipeline = forms.CharField(label="Or pipeline", required=False, max_length=63)
    params = JsonField(
        label="Parameters",
        required=False,
        help_text="A value that is a data source string is expanded into jobs.",
    )

    def body(self) -> dict[str, Any]:
        given = super().body()
        seconds = given.pop("interval_seconds", None)
        target = "pipeline" if given.get("pipeline") else "agent"
        body = {"repeat": Repeat.REPEATING.value, "target_type": target, **given}
        return body | ({} if seconds is None else {"interval_ms": int(seconds * 1000)})

    @staticmethod
    def members_of(schedule: Schedule) -> dict[str, Any]:
        """What the form begins with for a schedule that there is."""
        return {
            "cron": schedule.cron,
            "interval_seconds": None if schedule.interval_ms is None else schedule.interval_ms / 1000,
            "timezone": schedule.timezone,
            "agent_role": schedule.agent_role or "",
            "pipeline": schedule.pipeline.key if schedule.pipeline else "",
            "params": schedule.params,
        }
