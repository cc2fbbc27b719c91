"""Who does the upkeep, and how each part of it goes. Both belong to the platform and to no tenant."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class LeaderLease(models.Model):
    """One row: the process that does the upkeep. Only `activities.maintenance.leader` writes it, by PostgreSQL's clock."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    holder = models.UUIDField(help_text="Drawn by the process when it starts.")
    epoch = models.BigIntegerField(
        help_text="Raised whenever the lease changes hands; what an earlier epoch still writes is refused."
    )
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    since = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(help_text="Then another process may take over.")
    outage_began_at = models.DateTimeField(
        null=True, help_text="Since when nobody could renew the lease at the last outage of PostgreSQL."
    )
    outage_ended_at = models.DateTimeField(null=True, help_text="When somebody could again.")

    class Meta:
        constraints = (models.CheckConstraint(condition=models.Q(id=1), name="one_leader"),)

    def __str__(self) -> str:
        return f"{self.host}, pid {self.pid}"


class SystemJob(models.Model):
    """One part of upkeep, as the leader ran it last. The leader writes all of them together, some seconds late."""

    name = models.CharField(max_length=64, primary_key=True)
    owner = models.CharField(max_length=200, help_text="The module that does it.")
    period_seconds = models.FloatField(help_text="How often it is due.")
    budget_seconds = models.FloatField(help_text="How long one statement of it may take.")
    epoch = models.BigIntegerField(help_text="Of the leader that ran it.")
    started_at = models.DateTimeField(null=True, help_text="When the last run began.")
    finished_at = models.DateTimeField(null=True, help_text="When a run last ended, in whatever way.")
    succeeded_at = models.DateTimeField(null=True, help_text="When a run last ended well.")
    duration_seconds = models.FloatField(default=0.0, help_text="Of the last run that ended.")
    lag_seconds = models.FloatField(default=0.0, help_text="How long after its time the last run began.")
    failures = models.IntegerField(default=0, help_text="In a row. Waiting for a server is none.")
    error = models.CharField(
        max_length=200, blank=True, default="", help_text="Why the last run did not end well."
    )

    class Meta:
        verbose_name = "system job"

    def __str__(self) -> str:
        return self.name
