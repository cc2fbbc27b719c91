"""The form of a schedule: times as people say them, the zone of the tenant, and what is to be started.

Which fields fit the chosen kind of times is shown by the style sheet alone, so the form works without scripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from django import forms

from agents import configuration
from console.internal_api import ApiForm, JsonField, Reply
from pipelines.models import Pipeline
from pipelines.models.schedule import Overlap
from pipelines.timing.clock import zone_names
from tenants.context import tenant_scope
from tenants.principals import Principal

MOST_PIPELINES = 500  # that can be chosen
HOURLY, DAILY, WORKDAYS, WEEKLY, MONTHLY, EVERY, CRON, ONCE = (
    "hourly", "daily", "workdays", "weekly", "monthly", "every", "cron", "once",
)  # fmt: skip
WHEN = (
    (HOURLY, "Every hour"),
    (DAILY, "Every day"),
    (WORKDAYS, "Monday to Friday"),
    (WEEKLY, "Every week"),
    (MONTHLY, "Every month"),
    (EVERY, "Every so many minutes"),
    (ONCE, "Once"),
    (CRON, "As a cron expression says"),
)
DAYS = (
    ("1", "Monday"),
    ("2", "Tuesday"),
    ("3", "Wednesday"),
    ("4", "Thursday"),
    ("5", "Friday"),
    ("6", "Saturday"),
    ("0", "Sunday"),
)
OVERLAPS = (
    (Overlap.SKIP.value, "leave that time out"),
    (Overlap.QUEUE_ONE.value, "begin when it is over"),
    (Overlap.ALLOW.value, "begin all the same"),
    (Overlap.CANCEL_RUNNING.value, "cancel it and begin"),
)
#: Members of the API that stand in other fields of the form.
_STANDS_IN = {
    "repeat": "when", "interval_ms": "minutes", "start_at": "moment", "target_type": "target", "agent_role": "target", "pipeline": "target",
}  # fmt: skip
#: Where faults of a cron are told, by the kind of times that it was made from.
_CRON_STANDS_IN = {HOURLY: "minute", DAILY: "at", WORKDAYS: "at", WEEKLY: "at", MONTHLY: "day"}
_PRESETS = (
    (HOURLY, re.compile(r"(?P<minute>\d{1,2}) \* \* \* \*")),
    (DAILY, re.compile(r"(?P<m>\d{1,2}) (?P<h>\d{1,2}) \* \* \*")),
    (WORKDAYS, re.compile(r"(?P<m>\d{1,2}) (?P<h>\d{1,2}) \* \* 1-5")),
    (WEEKLY, re.compile(r"(?P<m>\d{1,2}) (?P<h>\d{1,2}) \* \* (?P<weekday>[0-6])")),
    (MONTHLY, re.compile(r"(?P<m>\d{1,2}) (?P<h>\d{1,2}) (?P<day>\d{1,2}) \* \*")),
)
MINUTE_MS = 60_000


class ScheduleForm(ApiForm):
    """When what is started. `present` is what the API shows of the schedule that is changed, None for a new one."""

    #: By the name of a field, the kinds of times that it is for; the others are for all.
    fits: ClassVar[Mapping[str, str]] = {
        "minute": HOURLY, "weekday": WEEKLY, "day": MONTHLY, "at": f"{DAILY} {WORKDAYS} {WEEKLY} {MONTHLY}", "minutes": EVERY,
        "moment": ONCE, "cron": CRON,
    }  # fmt: skip

    name = forms.CharField(max_length=200)
    target = forms.ChoiceField(label="Starts")
    when = forms.ChoiceField(choices=WHEN, initial=DAILY)
    minute = forms.IntegerField(label="At minute", required=False, min_value=0, max_value=59, initial=0)
    weekday = forms.ChoiceField(label="On", choices=DAYS, required=False, initial="1")
    day = forms.IntegerField(
        label="On day",
        required=False,
        min_value=1,
        max_value=31,
        initial=1,
        help_text="A month without that day is left out.",
    )
    at = forms.TimeField(
        label="At",
        required=False,
        initial="09:00",
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
    )
    minutes = forms.DecimalField(
        label="Minutes", required=False, min_value=Decimal("0.016"), max_digits=12, initial=30
    )
    moment = forms.CharField(
        label="Day and time",
        required=False,
        max_length=32,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )
    cron = forms.CharField(
        label="Cron",
        required=False,
        max_length=200,
        help_text="Minute, hour, day of the month, month, day of the week.",
    )
    timezone = forms.CharField(
        label="Time zone",
        max_length=64,
        widget=forms.TextInput(attrs={"list": "zones", "autocomplete": "off"}),
    )
    params = JsonField(
        label="Parameters",
        required=False,
        help_text="As JSON. A value that is a data source string is expanded into jobs.",
    )
    overlap = forms.ChoiceField(
        label="While the one before still runs", choices=OVERLAPS, initial=Overlap.SKIP.value
    )
    description = forms.CharField(required=False, max_length=2_000, widget=forms.Textarea(attrs={"rows": 2}))

    def __init__(
        self,
        data: Any = None,
        *,
        targets: Sequence[tuple[str, Any]],
        initial: Mapping[str, Any],
        present: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data, initial={**initial, **(_shown(present) if present else {})})
        self.present = present
        own = self.initial.get("target")
        if own and present and not any(own == value for _, choices in targets for value, _ in choices):
            targets = [*targets, ("As it is", [(own, own.partition(":")[2])])]
        self.fields["target"].choices = targets  # type: ignore[attr-defined]  # a ChoiceField

    def clean_timezone(self) -> str:
        name: str = self.cleaned_data["timezone"]
        if name not in zone_names():
            raise forms.ValidationError("There is no such time zone. Names are like Europe/Berlin.")
        return name

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        for name, kinds in self.fits.items():
            if given.get("when") not in kinds.split():
                self.errors.pop(name, None)  # nobody sees the field, and nothing is made of it
        for name in _NEEDED.get(given.get("when", ""), ()):
            if given.get(name) in (None, "") and name not in self.errors:
                self.add_error(name, "This is needed here.")
        if given.get("when") == ONCE and given.get("moment"):
            try:
                self.start_at = datetime.fromisoformat(given["moment"])
            except ValueError:
                self.add_error("moment", "This is no day and time, such as 2027-05-01T09:30.")
        return given

    def body(self) -> dict[str, Any]:
        given = self.cleaned_data
        kind, _, target = given["target"].partition(":")
        whole = {
            "name": given["name"],
            "description": given["description"],
            "timezone": given["timezone"],
            "params": given["params"] or {},
            "overlap": given["overlap"],
            "target_type": kind,
            "agent_role": target if kind == "agent" else None,
            "pipeline": target if kind == "pipeline" else None,
            **self._times(given),
        }
        return (
            whole
            if self.present
            else {name: value for name, value in whole.items() if value not in (None, "")}
        )

    def _times(self, given: Mapping[str, Any]) -> dict[str, Any]:
        when = given["when"]
        if when == ONCE:
            zone = ZoneInfo(given["timezone"])
            moment = self.start_at if self.start_at.tzinfo else self.start_at.replace(tzinfo=zone)
            return {
                "repeat": "once",
                "start_at": moment.isoformat(),
                "cron": None,
                "interval_ms": None,
                "end_at": None,
            }
        # A bound stays; the moment of what happened once is none.
        was_once = self.present is not None and self.present.get("repeat") == "once"
        repeating: dict[str, Any] = {"repeat": "repeating", **({"start_at": None} if was_once else {})}
        if when == EVERY:
            return {**repeating, "interval_ms": round(given["minutes"] * MINUTE_MS), "cron": None}
        return {**repeating, "cron": self._cron(given), "interval_ms": None}

    @staticmethod
    def _cron(given: Mapping[str, Any]) -> str:
        when, at = given["when"], given.get("at") or time()
        daily = f"{at.minute} {at.hour}"
        return {
            HOURLY: f"{given.get('minute') or 0} * * * *",
            DAILY: f"{daily} * * *",
            WORKDAYS: f"{daily} * * 1-5",
            WEEKLY: f"{daily} * * {given.get('weekday') or 1}",
            MONTHLY: f"{daily} {given.get('day')} * *",
        }.get(when, str(given.get("cron")))

    def blame(self, reply: Reply) -> None:
        when = self.cleaned_data.get("when", "")
        stands_in = {**_STANDS_IN, **({"cron": _CRON_STANDS_IN[when]} if when in _CRON_STANDS_IN else {})}
        told = {}
        for path, message in reply.faults.items():
            name, rest = re.match(r"([A-Za-z_]*)(.*)", path, re.DOTALL).groups()  # type: ignore[union-attr]  # it matches anything
            told[f"{stands_in.get(name, name)}{rest}"] = message
        super().blame(Reply(reply.status, reply.data, told))


#: What has to be filled in, by the kind of times.
_NEEDED = {HOURLY: ("minute",), DAILY: ("at",), WORKDAYS: ("at",), WEEKLY: ("at", "weekday"), MONTHLY: ("at", "day"), EVERY: ("minutes",),
           CRON: ("cron",), ONCE: ("moment",)}  # fmt: skip


def targets_of(who: Principal) -> list[tuple[str, list[tuple[str, str]]]]:
    """What a schedule may start, in groups as a list of choices shows them."""
    with tenant_scope(who.tenant_id):
        known = Pipeline.objects.for_tenant(who.tenant_id).filter(enabled=True).order_by("name", "key")
        pipelines = [
            (f"pipeline:{key}", name or key)
            for key, name in known.values_list("key", "name")[:MOST_PIPELINES]
        ]
        agents = [(f"agent:{role}", role) for role in sorted(configuration.known_roles())]
    return [("Pipelines", pipelines), ("Agents", agents)]


def _shown(present: Mapping[str, Any]) -> dict[str, Any]:
    """What the form begins with for a schedule that there is."""
    kind = present["target_type"]
    target = present["agent_role"] if kind == "agent" else present["pipeline"]
    kept = {name: present[name] for name in ("name", "timezone", "params", "overlap", "description")}
    return {**kept, "target": f"{kind}:{target}", **_when(present)}


def _when(present: Mapping[str, Any]) -> dict[str, Any]:
    if present["repeat"] == "once":
        start = present["start_at"]
        local = start.astimezone(ZoneInfo(present["timezone"])) if start else None
        return {"when": ONCE, "moment": f"{local:%Y-%m-%dT%H:%M:%S}" if local else ""}
    if present["interval_ms"]:
        return {"when": EVERY, "minutes": f"{present['interval_ms'] / MINUTE_MS:.6g}"}
    for name, pattern in _PRESETS:
        if found := pattern.fullmatch(present["cron"] or ""):
            parts = found.groupdict()
            at = {"at": f"{int(parts.pop('h')):02}:{int(parts.pop('m')):02}"} if "h" in parts else {}
            return {"when": name, "cron": present["cron"], **at, **parts}
    return {"when": CRON, "cron": present["cron"]}
