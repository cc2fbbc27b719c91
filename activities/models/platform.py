"""Counters of the whole platform, and up to which event they have counted. They belong to no tenant and name none."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned

# Who does the upkeep, and how each part of it goes. Both belong to the platform and to no tenant.


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


class Counter(models.Model):
    """How often something happened. A histogram has one row for each bucket, which counts only what fell into that bucket."""

    name = models.CharField(max_length=32)
    role = models.CharField(
        max_length=63, help_text="Empty for people's work, and for what concerns no role."
    )
    status = models.CharField(max_length=20)
    le = models.FloatField(
        help_text="The upper bound of the bucket; infinity for the last, and for what is no histogram."
    )
    count = models.BigIntegerField()
    total = models.FloatField(help_text="The sum of what was observed.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("name", "role", "status", "le"), name="counted_once"),)

    def __str__(self) -> str:
        return f"{self.name}: {self.count}"


class CountingMark(models.Model):
    """One row: events up to `counted` are counted; those up to `seen` are next, once all transactions before `barrier` are over."""

    counted = models.BigIntegerField(default=0)
    seen = models.BigIntegerField(default=0)
    barrier = models.BigIntegerField(default=0, help_text="An id of a transaction, with its epoch.")
    at = models.DateTimeField(db_default=Now(), help_text="When a keeper last looked for something to count.")
    noted_at = models.DateTimeField(db_default=Now(), help_text="When `seen` was the newest event.")
    complete_at = models.DateTimeField(
        db_default=Now(), help_text="Up to when all that happened is in the counters."
    )

    def __str__(self) -> str:
        return f"up to {self.counted}"


# Problems of the platform, for as long as they last. They belong to no tenant; the alerts about them do.


class Condition(models.Model):
    """A problem that people were notified of. The row is deleted when it is over, in the transaction that notifies them of the end."""

    name = models.CharField(max_length=400, unique=True, help_text="Its kind and what it concerns.")
    kind = models.CharField(max_length=32, help_text="The kind of its alerts.")
    over = models.CharField(max_length=200, help_text="What people are told when it has ended.")
    facts = models.JSONField(default=dict, help_text="For programs; as in its alerts.")
    since = models.DateTimeField(db_default=Now())
    tenants = models.JSONField(default=list, help_text="Ids of the tenants that were told.")

    class Meta:
        verbose_name = "platform condition"

    def __str__(self) -> str:
        return self.name


# What fails again and again.


class FailuresInARow(TenantOwned):
    """How often the runs of a role, or those that a schedule starts, have failed one after the other. The first success deletes the row.

    Runs that were told to try again later, or ended because money or a server was missing, do not count. Written with the counters.
    """

    class Kind(models.TextChoices):
        ROLE = "role"
        SCHEDULE = "schedule"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    subject = models.CharField(max_length=63, help_text="The role, or the id of the schedule.")
    count = models.PositiveBigIntegerField()
    error_code = models.CharField(max_length=200, blank=True, default="", help_text="Of the last one.")
    since = models.DateTimeField(help_text="When the first of them was noticed.")

    class Meta:
        verbose_name_plural = "failures in a row"
        constraints = (
            models.UniqueConstraint(fields=("tenant", "kind", "subject"), name="failures_once_per_subject"),
        )
        indexes = (models.Index(fields=("count",), name="failures_most"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.count}"


# Submissions that created nothing, since an equal activity was under way.


class RepeatedSubmissions(TenantOwned):
    """How many there were, by the role whose work it was; an empty role stands for people's. It only ever counts up."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    agent_role = models.CharField(max_length=63, blank=True, default="")
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "repeated submissions"
        constraints = (
            models.UniqueConstraint(fields=("tenant", "agent_role"), name="repetitions_once_per_role"),
        )

    def __str__(self) -> str:
        return f"{self.agent_role or 'people'}: {self.count}"


# Work that was turned away because too much was waiting already, or given up because it had waited too long.


class TurnedAway(TenantOwned):
    """How much there was, by the role whose work it was and by the reason. It only ever counts up."""

    class Reason(models.TextChoices):
        REJECTED = "rejected", "The submission was answered 429."
        SHED = "shed", "It made room for newer or more urgent work."
        EXPIRED = "expired", "Its time had passed before it could start."

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    agent_role = models.CharField(max_length=63)
    reason = models.CharField(max_length=8, choices=Reason.choices)
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "turned away"
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "agent_role", "reason"), name="turned_away_once_per_role"
            ),
        )

    def __str__(self) -> str:
        return f"{self.agent_role}, {self.reason}: {self.count}"
