"""Deliverables, which are due every month, and their monthly periods."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Self

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models.functions import Now

from pipelines.models.pipeline import key_validator
from tenants import clock
from tenants.models import TenantOwned, index, unique


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in UTC, by its first and its last day. It is one period."""

    starts_on: date
    ends_on: date

    @classmethod
    def of(cls, day: date) -> Self:
        _, days = monthrange(day.year, day.month)
        return cls(day.replace(day=1), day.replace(day=days))

    @property
    def following(self) -> date:
        """The first day of the next month."""
        return self.ends_on + timedelta(days=1)


def end_of(last_day: date) -> datetime:
    """Return the moment at which a month with this last day is over."""
    return datetime.combine(last_day, time.max, tzinfo=UTC) + timedelta(microseconds=1)


def next_month() -> date:
    """Return the first day of the next month, in UTC."""
    return Month.of(clock.today()).following


class DeliverableState(models.TextChoices):
    """Each state is documented by what happens in the next month."""

    ACTIVE = "active"  # It gets a period.
    PAUSED = "paused"  # It gets none until the deliverable is active again.
    ENDED = "ended"  # It gets none; its periods remain as history.


class PeriodState(models.TextChoices):
    """Each state is documented by how it is left."""

    PLANNING = "planning"  # A plan is accepted, the planner's or a person's.
    ACTIVE = "active"  # The last of its runs ends.
    COMPLETED = "completed"  # One of its runs is retried.
    CANCELLED = "cancelled"  # Final.


class Deliverable(TenantOwned):
    """Something that is planned every month, as runs of some pipelines."""

    key = models.CharField(max_length=63, validators=[key_validator])
    name = models.CharField(max_length=200)
    description = models.TextField(
        blank=True, default="", help_text="The description that the planner receives."
    )
    status = models.CharField(
        max_length=10, choices=DeliverableState.choices, default=DeliverableState.ACTIVE
    )
    next_on = models.DateField(
        default=next_month,
        editable=False,
        help_text="If it is active, a period is due from this day on. The period of the month in which it was created is started by hand.",
    )
    pipelines = models.JSONField(
        default=list, help_text='The keys of the pipelines that its plans may use, such as ["content-brief"].'
    )
    target = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many runs of a period should be completed. A period that cannot reach it is at risk.",
    )
    params = models.JSONField(
        default=dict,
        blank=True,
        help_text="Parameters for every run of its periods. Parameters in the plan take precedence.",
    )
    version = models.PositiveIntegerField(
        default=1, editable=False, help_text="Increases with every change; the ETag begins with it."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            unique("deliverable_key_once_per_tenant", "tenant", "key"),
            unique("deliverable_of_tenant", "tenant", "id"),
        )
        indexes = (
            # For the query for missed months, which runs every second over all tenants.
            index("deliverable_due", "next_on", status="active"),
        )

    def __str__(self) -> str:
        return self.name


class DeliverablePeriod(TenantOwned):
    """One calendar month (UTC) of a deliverable. Lock its row before counting its runs."""

    deliverable = models.ForeignKey(
        Deliverable, on_delete=models.PROTECT, related_name="periods", db_constraint=False, db_index=False
    )
    starts_on = models.DateField()
    ends_on = models.DateField(help_text="The last day of the month.")
    status = models.CharField(max_length=10, choices=PeriodState.choices, default=PeriodState.PLANNING)
    target = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="The target of the deliverable; it changes with it until the period has ended.",
    )
    planned = models.PositiveIntegerField(default=0, help_text="Number of runs in the plan.")
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    at_risk = models.BooleanField(default=False)
    at_risk_reason = models.TextField(blank=True, default="")
    plan = models.JSONField(null=True, blank=True, help_text="The plan that was accepted.")
    plan_faults = models.JSONField(
        default=list, blank=True, help_text="The errors of the last plan that was refused, by path."
    )
    planner_activity_id = models.UUIDField(help_text="The activity whose output is the plan.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        constraints = (
            # A month starts once, however many jobs, beats and people start it at the same time.
            unique("period_once_per_month", "deliverable", "starts_on"),
            unique("period_of_tenant", "tenant", "id"),
        )
        indexes = (index("period_newest", "tenant", "-starts_on", "-id"),)

    def __str__(self) -> str:
        return f"{self.starts_on:%Y-%m}"
