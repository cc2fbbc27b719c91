"""What the form of a schedule, as it is filled in, would come to: for the panel that shows it while somebody types."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest

from pipelines.admin.schedule_form import ScheduleForm
from pipelines.models import Schedule
from pipelines.schedules import forecast
from pipelines.schedules.errors import InvalidSchedule
from pipelines.schedules.forecast import Forecast


def preview_of(request: HttpRequest) -> dict[str, Any]:
    """The context of the panel: a forecast, or why there is none."""
    present = _instance(request.POST.get("schedule", ""))
    form = ScheduleForm(request.POST, instance=present)
    form.is_valid()
    tenant = form.tenant
    unread = {
        str(form.fields[name].label or name).capitalize(): texts
        for name, texts in form.errors.items()
        if name in form.fields and name not in ("tenant", "name") and name not in form.judged
    }
    if tenant is None:
        return {"waiting_for": "Choose a tenant first.", "unread": unread}
    try:
        found = forecast.of_members(tenant.pk, form.members, from_now=True, present=present)
    except InvalidSchedule as refusal:
        errors = [{"path": fault.path, "message": fault.message} for fault in refusal.faults]
        return {"unread": unread, "errors": errors}
    return {
        "unread": unread,
        "forecast": found,
        "errors": found.errors,
        "times": _times(found),
        **_work(found),
    }


def _instance(text: str) -> Schedule | None:
    try:
        return Schedule.objects.filter(pk=text).first() if text else None
    except ValueError:
        return None


def _times(found: Forecast) -> list[tuple[datetime, datetime]]:
    """Each time on the clocks of the schedule's zone, and in UTC."""
    zone = ZoneInfo(found.timezone)
    return [(moment.astimezone(zone), moment) for moment in found.fires_at]


def _work(found: Forecast) -> dict[str, Any]:
    last = found.fires_at[0] + found.ends_after if found.fires_at else None
    return {
        "sample": "\n".join(json.dumps(params, ensure_ascii=False, default=str) for params in found.sample),
        "sampled": len(found.sample),
        "ends_after_seconds": f"{found.ends_after.total_seconds():g}",
        "last_batch_at": last.astimezone(ZoneInfo(found.timezone)) if last else None,
    }
