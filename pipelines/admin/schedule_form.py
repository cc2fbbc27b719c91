"""A schedule in a form. What a person fills in is brought to the members of the API, and judged by the same function."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from agents import configuration, scheduler_settings
from pipelines.models import Schedule
from pipelines.schedules import checking, given
from pipelines.timing.clock import zone_names
from tenants.context import tenant_scope
from tenants.models import Tenant

#: Members of the retry policy; each is a field of its own.
RETRY = ("max_attempts", "strategy", "base_seconds", "multiplier", "max_seconds", "jitter")
CATCH_UP = [
    ("latest", "the latest one that was missed"),
    ("none", "none that was missed"),
    ("up_to", "so many that were missed, the latest ones:"),
]
STRATEGIES = [("", "as the agent's settings say"), *((name, name) for name in checking.STRATEGIES)]
WALL_TIMES = ("start_at", "end_at")
WALL_TIME = "%Y-%m-%dT%H:%M:%S"


def _number(**attributes: Any) -> UnfoldAdminIntegerFieldWidget:
    return UnfoldAdminIntegerFieldWidget(attrs=attributes)


class ScheduleForm(forms.ModelForm):
    """Times are those of the schedule's own zone. `members` is what was filled in, whatever is wrong with it."""

    timezone = forms.ChoiceField(
        widget=UnfoldAdminSelectWidget, help_text="Cron, start and end are read on the clocks of this zone."
    )
    start_at = forms.CharField(
        required=False,
        label="Start",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local", "step": "1"}),
        help_text="When a run happens once; nothing before it when it repeats, and where an interval counts from.",
    )
    end_at = forms.CharField(
        required=False,
        label="End",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local", "step": "1"}),
        help_text="Nothing after it.",
    )
    interval_ms = forms.IntegerField(required=False, label="Interval (ms)", widget=_number(min=1000))
    agent_role = forms.ChoiceField(required=False, label="Agent", widget=UnfoldAdminSelectWidget)
    params = forms.JSONField(
        required=False,
        label="Parameters",
        initial=dict,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8, "class": "orc-code", "spellcheck": "false"}),
        help_text='JSON. A data source makes a job of each row: {"tickerId": "db:ticker:all:id?enabled=true&batchSize=10"}.',
    )
    retry_max_attempts = forms.IntegerField(required=False, label="Attempts", widget=_number(min=1, max=50))
    retry_strategy = forms.ChoiceField(
        required=False, label="Delay grows", choices=STRATEGIES, widget=UnfoldAdminSelectWidget
    )
    retry_base_seconds = forms.FloatField(
        required=False, label="First delay (s)", widget=_number(min=0, step="any")
    )
    retry_max_seconds = forms.FloatField(
        required=False, label="Longest delay (s)", widget=_number(min=0, step="any")
    )
    retry_multiplier = forms.FloatField(required=False, label="Factor", widget=_number(min=1, step="any"))
    retry_jitter = forms.FloatField(
        required=False, label="Jitter of the delay", widget=_number(min=0, max=1, step="any")
    )
    catch_up_policy = forms.ChoiceField(
        required=False, label="After an outage, run", choices=CATCH_UP, widget=UnfoldAdminSelectWidget
    )
    catch_up_most = forms.IntegerField(required=False, label="At most", widget=_number(min=1, max=1000))
    expected = forms.IntegerField(widget=forms.HiddenInput, required=False)

    class Meta:
        model = Schedule
        fields = (
            "tenant", "name", "description", "target_type", "pipeline", "repeat", "cron", "dst_gap", "dst_fold", "jitter_seconds",
            "timeout_seconds", "priority", "overlap", "after_once", "enabled",
        )  # fmt: skip
        labels = {
            "dst_gap": "Times that clocks skip",
            "dst_fold": "Times that come twice",
            "jitter_seconds": "Jitter (s)",
            "timeout_seconds": "Timeout (s)",
            "overlap": "If one is under way",
            "after_once": "After its one run",
        }
        help_texts = {
            "priority": "1 (urgent) to 20 (background).",
            "jitter_seconds": "Fires up to so many seconds late.",
            "overlap": "Waiting for a person counts as under way.",
        }
        widgets = {"description": UnfoldAdminTextareaWidget(attrs={"rows": 2})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.members: dict[str, Any] = {}  # what has been filled in, once it has been read
        self.judged: set[str] = set()  # fields whose faults are the schedule's, not those of what was typed
        super().__init__(*args, **kwargs)
        schedule = self.instance
        if schedule._state.adding:
            self.initial.setdefault("timezone", scheduler_settings.current().timezone)
        else:
            self._fill(schedule)
        roles = sorted({*configuration.known_roles(), *filter(None, [schedule.agent_role])})
        self._field("agent_role").choices = [("", "---------"), *((role, role) for role in roles)]
        self._field("timezone").choices = [(name, name) for name in sorted(zone_names())]
        for name in ("timeout_seconds", "jitter_seconds", "priority"):
            self.fields[name].required = False

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        tenant = self.tenant
        self.members = self._members()  # before a fault takes the value of its field away
        if tenant is None:
            return values
        with tenant_scope(tenant.pk):
            checked = checking.check(tenant.pk, self.members)
            name = checked.columns["name"]
            same = Schedule.objects.for_tenant(tenant.pk).filter(name=name).exclude(pk=self.instance.pk)
            if name and same.exists():
                self.add_error("name", f"There is a schedule {name!r} already.")
        for fault in (*checked.faults, *checked.faults_of_work):
            field = self.field_of(fault.path)
            if field is None or field in self.judged or field not in self.errors:
                self.judged |= {field} if field else set()
                self.add_error(field, str(fault) if field is None or fault.path != field else fault.message)
        return values

    def _post_clean(self) -> None:
        """The row is written by `saving`, from the members."""

    @property
    def tenant(self) -> Tenant | None:
        found: Tenant | None = (
            self.instance.tenant if self.instance.tenant_id else self.cleaned_data.get("tenant")
        )
        return found

    @property
    def whole(self) -> dict[str, Any]:
        """The members with null for those that are empty, so that a change empties them as well."""
        return {**dict.fromkeys(given.MEMBERS), **self.members}

    def _members(self) -> dict[str, Any]:
        """As the API takes them. What could not be read is left out: its field says why."""
        values = self.cleaned_data
        pipeline = values.get("pipeline")
        found = {name: values.get(name) for name in given.MEMBERS if values.get(name) not in (None, "")}
        found |= {"enabled": bool(values.get("enabled")), "params": values.get("params") or {}}
        if pipeline is not None:
            found["pipeline"] = (
                pipeline.key if self.tenant and pipeline.tenant_id == self.tenant.pk else f"{pipeline}"
            )
        found |= {name: self._moment(name) for name in WALL_TIMES if values.get(name)}
        retry = {name: values.get(f"retry_{name}") for name in RETRY}
        found["retry"] = {name: value for name, value in retry.items() if value not in (None, "")}
        policy = values.get("catch_up_policy") or "latest"
        found["catch_up"] = {"up_to": values.get("catch_up_most")} if policy == "up_to" else policy
        return self._without_the_other_kind(found)

    def field_of(self, path: str) -> str | None:
        """The field at which a fault is shown; None for the top of the form."""
        first = path.replace("[", ".").partition(".")[0]
        if first == "retry":
            return f"retry_{path.partition('.')[2]}" if "." in path else "retry_max_attempts"
        if first == "catch_up":
            return (
                "catch_up_most" if self.cleaned_data.get("catch_up_policy") == "up_to" else "catch_up_policy"
            )
        return first if first in self.fields else None

    def _without_the_other_kind(self, found: dict[str, Any]) -> dict[str, Any]:
        """The form shows the fields of both kinds of targets and of times; what the other kind would need is ignored."""
        other = {"agent": "pipeline", "pipeline": "agent_role"}.get(found.get("target_type", ""))
        dropped = {other} if other else set()
        if found.get("repeat") == "once":
            dropped |= {"cron", "interval_ms", "end_at"}
        return {name: value for name, value in found.items() if name not in dropped}

    def _moment(self, name: str) -> Any:
        """The moment that a wall time of the chosen zone means; one that nobody touched stays to the microsecond."""
        text = self.cleaned_data[name]
        before = getattr(self.instance, name)
        if before is not None and not {name, "timezone"} & set(self.changed_data):
            return before
        try:
            wall = datetime.fromisoformat(text)
            zone = ZoneInfo(self.cleaned_data["timezone"])
        except (ValueError, KeyError):
            return text
        return (wall if wall.tzinfo else wall.replace(tzinfo=zone)).astimezone(UTC)

    def _fill(self, schedule: Schedule) -> None:
        """What the fields show of a row whose columns are not fields themselves."""
        zone = ZoneInfo(schedule.timezone)
        for name in ("timezone", "interval_ms", "agent_role", "params"):
            self.initial[name] = getattr(schedule, name)
        for name in WALL_TIMES:
            moment = getattr(schedule, name)
            self.initial[name] = moment.astimezone(zone).strftime(WALL_TIME) if moment else ""
        for name in RETRY:
            self.initial[f"retry_{name}"] = schedule.retry.get(name)
        policy = given.catch_up_of(schedule)
        self.initial["catch_up_policy"] = "up_to" if isinstance(policy, dict) else policy
        self.initial["catch_up_most"] = policy["up_to"] if isinstance(policy, dict) else None
        self.initial["expected"] = schedule.version

    def _field(self, name: str) -> Any:
        return self.fields[name]
