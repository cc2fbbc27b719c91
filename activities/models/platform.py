"""State of the platform: the leader and its system jobs, counters, platform problems, and counts of failures and refusals."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.models import TenantOwned, index, unique

# The models in the first part of this module belong to no tenant.


class LeaderLease(models.Model):
    """One row: the process that runs the system jobs. Only `activities.maintenance.leader` writes it, by PostgreSQL's clock."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    holder = models.UUIDField(help_text="A random id that the process generates when it starts.")
    epoch = models.BigIntegerField(
        help_text="Increases whenever the lease gets another holder. Writes of earlier epochs are refused."
    )
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    since = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(help_text="After this time, another process may take over.")
    outage_began_at = models.DateTimeField(
        null=True,
        help_text="The time from which nobody could renew the lease, in the last outage of PostgreSQL.",
    )
    outage_ended_at = models.DateTimeField(
        null=True, help_text="The time from which the lease could be renewed again."
    )

    class Meta:
        constraints = (models.CheckConstraint(condition=models.Q(id=1), name="one_leader"),)

    def __str__(self) -> str:
        return f"{self.host}, pid {self.pid}"


class SystemJob(models.Model):
    """The last run of a system job. The leader writes all rows together, with some seconds of delay."""

    name = models.CharField(max_length=64, primary_key=True)
    owner = models.CharField(max_length=200, help_text="The module that runs it.")
    period_seconds = models.FloatField(help_text="How often it is due.")
    budget_seconds = models.FloatField(help_text="How long one of its statements may take.")
    epoch = models.BigIntegerField(help_text="The epoch of the leader that ran it.")
    started_at = models.DateTimeField(null=True, help_text="When the last run began.")
    finished_at = models.DateTimeField(null=True, help_text="When a run last ended, with or without success.")
    succeeded_at = models.DateTimeField(null=True, help_text="When a run last succeeded.")
    duration_seconds = models.FloatField(default=0.0, help_text="How long the last run took.")
    lag_seconds = models.FloatField(default=0.0, help_text="How late the last run began.")
    failures = models.IntegerField(
        default=0, help_text="Number of failures in a row. Waiting for a server is not a failure."
    )
    error = models.CharField(max_length=200, blank=True, default="", help_text="Why the last run failed.")

    class Meta:
        verbose_name = "system job"

    def __str__(self) -> str:
        return self.name


class Counter(models.Model):
    """A counter of the platform. A histogram has one row for each bucket, which counts the values in that bucket only."""

    name = models.CharField(max_length=32)
    role = models.CharField(max_length=63, help_text="Empty for people's work, and where there is no role.")
    status = models.CharField(max_length=20)
    le = models.FloatField(
        help_text="The upper bound of the bucket. Infinity for the last bucket, and if it is not a histogram."
    )
    count = models.BigIntegerField()
    total = models.FloatField(help_text="The sum of the observed values.")

    class Meta:
        constraints = (unique("counted_once", "name", "role", "status", "le"),)

    def __str__(self) -> str:
        return f"{self.name}: {self.count}"


class CountingMark(models.Model):
    """One row: events up to `counted` are counted; those up to `seen` follow when all transactions before `barrier` have ended."""

    counted = models.BigIntegerField(default=0)
    seen = models.BigIntegerField(default=0)
    barrier = models.BigIntegerField(default=0, help_text="The id of a transaction, with its epoch.")
    at = models.DateTimeField(db_default=Now(), help_text="When a leader last counted.")
    noted_at = models.DateTimeField(db_default=Now(), help_text="When `seen` was the newest event.")
    complete_at = models.DateTimeField(
        db_default=Now(), help_text="Everything until this time is included in the counters."
    )

    def __str__(self) -> str:
        return f"up to {self.counted}"


class Condition(models.Model):
    """A current problem of the platform. It belongs to no tenant, but its alerts do.

    The row is deleted when the problem is over, in the transaction that notifies people of the end.
    """

    name = models.CharField(max_length=400, unique=True, help_text="Its kind and its subject.")
    kind = models.CharField(max_length=32, help_text="The kind of its alerts.")
    over = models.CharField(max_length=200, help_text="The message to people when it has ended.")
    facts = models.JSONField(default=dict, help_text="Facts for programs, as in its alerts.")
    since = models.DateTimeField(db_default=Now())
    tenants = models.JSONField(default=list, help_text="Ids of the tenants that were notified.")

    class Meta:
        verbose_name = "platform condition"

    def __str__(self) -> str:
        return self.name


class FailuresInARow(TenantOwned):
    """The number of consecutive failed runs of a role or a schedule. The first success deletes the row.

    Runs that were rate limited, or ended because of a budget or an outage, do not count. Written with the counters.
    """

    class Kind(models.TextChoices):
        ROLE = "role"
        SCHEDULE = "schedule"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    subject = models.CharField(max_length=63, help_text="The role, or the id of the schedule.")
    count = models.PositiveBigIntegerField()
    error_code = models.CharField(
        max_length=200, blank=True, default="", help_text="The error code of the last failure."
    )
    since = models.DateTimeField(help_text="When the first failure was noticed.")

    class Meta:
        verbose_name_plural = "failures in a row"
        constraints = (unique("failures_once_per_subject", "tenant", "kind", "subject"),)
        indexes = (index("failures_most", "count"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.count}"


class RepeatedSubmissions(TenantOwned):
    """The number of submissions that created nothing because an equal activity was live, by role; people's work has an empty role.

    It never decreases.
    """

    agent_role = models.CharField(max_length=63, blank=True, default="")
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "repeated submissions"
        constraints = (unique("repetitions_once_per_role", "tenant", "agent_role"),)

    def __str__(self) -> str:
        return f"{self.agent_role or 'people'}: {self.count}"


class TurnedAway(TenantOwned):
    """The number of activities that were refused, cancelled to make room, or expired, by role and reason. It never decreases."""

    class Reason(models.TextChoices):
        REJECTED = "rejected", "The submission was answered 429."
        SHED = "shed", "It made room for newer or more urgent work."
        EXPIRED = "expired", "Its time had passed before it could start."

    agent_role = models.CharField(max_length=63)
    reason = models.CharField(max_length=8, choices=Reason.choices)
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "refused work"
        verbose_name_plural = "refused work"
        constraints = (unique("turned_away_once_per_role", "tenant", "agent_role", "reason"),)

    def __str__(self) -> str:
        return f"{self.agent_role}, {self.reason}: {self.count}"
