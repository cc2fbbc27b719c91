"""Forms with which admins arrange budgets, channels and webhooks. What is right is for the API to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from activities.models.alert import AlertKind, ChannelKind, Digest, Weekday
from console.internal_api import ApiForm, JsonField, WordsField
from tenants.models import BudgetPeriod, BudgetUnit
from tenants.models.events import KINDS

CHOSEN = forms.CheckboxSelectMultiple


class Arranged(ApiForm):
    """Base: `present` is what the API shows of the one that is changed, None for a new one."""

    kept: tuple[str, ...] = ()  # members that cannot be changed and are sent as they are

    def __init__(self, data: Any = None, *, present: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, initial=dict(present or {}))
        self.present = present or {}

    def body(self) -> dict[str, Any]:
        kept = {name: self.present[name] for name in self.kept if self.present.get(name) is not None}
        return {**{name: str(value) for name, value in kept.items()}, **super().body()}


class ChangedBudget(Arranged):
    """What of a budget can be changed; what it counts stays."""

    kept = ("agent_role", "deliverable", "activity", "unit", "period")

    name = forms.CharField(max_length=200)
    cap = forms.CharField(max_length=40, help_text="In the unit that is chosen. With 0 nothing starts.")
    warning_share = forms.CharField(
        label="Warn at this share",
        required=False,
        max_length=8,
        initial="0.8",
        help_text="With 0.8 people are told when 80% is spent.",
    )
    estimate = forms.CharField(
        label="Kept for each run",
        required=False,
        max_length=40,
        help_text="Leave empty to keep what runs took lately.",
    )


class NewBudget(ChangedBudget):
    """A budget with what it counts."""

    agent_role = forms.CharField(
        label="Role", required=False, max_length=63, help_text="Leave empty for all roles."
    )
    unit = forms.ChoiceField(choices=BudgetUnit.choices, initial=BudgetUnit.DOLLARS)
    period = forms.ChoiceField(choices=BudgetPeriod.choices, initial=BudgetPeriod.MONTH)
    field_order = ("name", "agent_role", "unit", "period", "cap", "warning_share", "estimate")


class ChannelForm(Arranged):
    """A connection of the tenant's to the outside."""

    kind = forms.CharField(max_length=63, help_text="For example google-ads.")
    name = forms.CharField(max_length=200)
    expires_at = forms.CharField(
        label="Expires at", required=False, max_length=40, help_text="For example 2027-05-01T09:30:00Z."
    )
    details = JsonField(required=False, help_text="For agents: account numbers and the like. No secrets.")


class ChangedNotification(Arranged):
    """Where people are told of alerts. A target that is left empty stays as it is."""

    name = forms.CharField(max_length=100)
    target = forms.CharField(
        required=False,
        max_length=2_000,
        help_text="A URL for slack and webhook, addresses separated by commas for email. Leave empty to keep it.",
    )
    kinds = forms.MultipleChoiceField(
        label="Alerts (choose none for all)", required=False, choices=AlertKind.choices, widget=CHOSEN
    )
    digest = forms.ChoiceField(
        required=False,
        choices=Digest.choices,
        initial=Digest.OFF,
        help_text="For email: a summary each day or each week.",
    )
    digest_hour = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=23,
        help_text="In the tenant's time zone. Empty: 7 for daily digests, 9 for weekly ones, unless the platform says otherwise.",
    )
    digest_day = forms.ChoiceField(
        required=False,
        choices=[("", "Monday, unless chosen"), *Weekday.choices],
        help_text="Of weekly digests.",
    )
    digest_roles = WordsField(
        label="Human roles of the digest",
        required=False,
        max_length=2_000,
        help_text="Whose waiting items it tells of. Empty: all.",
    )
    enabled = forms.BooleanField(label="Switched on", required=False, initial=True)

    def __init__(self, data: Any = None, *, present: Mapping[str, Any] | None = None) -> None:
        # What is shown of a target is no target.
        super().__init__(
            data, present={name: value for name, value in (present or {}).items() if name != "target"}
        )


class NewNotification(ChangedNotification):
    """One more place."""

    kind = forms.ChoiceField(choices=ChannelKind.choices, initial=ChannelKind.EMAIL)
    target = forms.CharField(
        max_length=2_000, help_text="A URL for slack and webhook, addresses separated by commas for email."
    )
    field_order = (
        "kind",
        "name",
        "target",
        "kinds",
        "digest",
        "digest_hour",
        "digest_day",
        "digest_roles",
        "enabled",
    )


class WebhookForm(Arranged):
    """Where events are sent."""

    url = forms.CharField(label="Address", max_length=2_000)
    description = forms.CharField(required=False, max_length=200)
    kinds = forms.MultipleChoiceField(
        label="Events (choose none for all)",
        required=False,
        choices=[(kind, kind) for kind in KINDS],
        widget=CHOSEN,
    )
    enabled = forms.BooleanField(label="Switched on", required=False, initial=True)
