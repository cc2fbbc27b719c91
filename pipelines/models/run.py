"""Runs of pipelines, and their steps."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.models import FOR_LISTS, TenantOwned, TenantPart, index, part_of, unique


class RunState(models.TextChoices):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepState(models.TextChoices):
    PENDING = "pending"
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class StepReason(models.TextChoices):
    """Why a step was skipped or has not started yet."""

    CONDITION = "condition", "its condition is false"
    UPSTREAM = "upstream", "a step before it failed, or none before it was needed"
    EVALUATING = "evaluating", "its condition is being evaluated"
    BACKLOG = "backlog", "as much work of its role is waiting as may wait"


class PipelineRun(TenantOwned):
    """One run of a pipeline version. Lock its row before advancing its steps."""

    version = models.ForeignKey(
        "pipelines.PipelineVersion", on_delete=models.PROTECT, related_name="runs", db_constraint=False
    )
    status = models.CharField(max_length=12, choices=RunState.choices, default=RunState.RUNNING)
    params = models.JSONField(default=dict, blank=True)
    input = models.JSONField(null=True, blank=True)
    deliverable_id = models.UUIDField(null=True, blank=True)
    period = models.ForeignKey(
        "pipelines.DeliverablePeriod",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="runs",
        db_constraint=False,
        db_index=False,
    )
    plan_item = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Its position in the period's plan."
    )
    name = models.CharField(max_length=200, blank=True, default="", help_text="What this run is about.")
    labels = models.JSONField(
        default=dict, db_default={}, blank=True, help_text="Names and texts by which people find it."
    )
    schedule_id = models.UUIDField(null=True, blank=True, help_text="The schedule that it comes from.")
    priority = models.SmallIntegerField(default=10)
    retry = models.JSONField(
        default=dict, db_default={}, blank=True, help_text="For steps that do not set their own."
    )
    timeout_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="The timeout of each attempt, for steps that do not set their own."
    )
    unsettled = models.IntegerField(help_text="Number of steps that are not done, failed or skipped.")
    failed = models.BooleanField(
        default=False, help_text="Whether there is a failure that no later step makes up for."
    )
    created_by = models.CharField(max_length=200, blank=True, default="")
    requested_identity = models.CharField(
        max_length=100,
        blank=True,
        db_default="",
        help_text="The identity of the caller who started it. Unlike a name, nobody can choose it.",
    )
    replay_of = models.UUIDField(null=True, blank=True, help_text="The ended run that it replays.")
    replay_from = models.CharField(
        max_length=63, blank=True, default="", db_default="", help_text="The first step that is replayed."
    )
    replay_input = models.JSONField(
        null=True,
        blank=True,
        help_text="The input of that step, instead of the outputs of the steps before it.",
    )
    not_before = models.DateTimeField(
        null=True, editable=False, help_text="The date of its first steps, also of those that wait for room."
    )
    started_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        constraints = (
            unique("pipeline_run_of_tenant", "tenant", "id"),
            # Accepting the same plan twice starts nothing twice. Also the index for the runs of a period.
            unique("plan_item_run_once", "period", "plan_item", period__isnull=False),
        )
        indexes = (
            index("pipeline_runs_listed", "tenant", "-started_at", "-id", where=FOR_LISTS),
            index(
                "pipeline_run_of_schedule", "tenant", "schedule_id", "-started_at", schedule_id__isnull=False
            ),
            index("pipeline_run_replays", "tenant", "replay_of", replay_of__isnull=False),
        )

    def __str__(self) -> str:
        return self.name or f"run {self.id}"


class StepRun(TenantPart):
    """The state of one step of a run. The rows of all steps are created with the run.

    When a step with a `for_each` starts, it gets one more row for each of its items, with `branch` 1, 2 and so on. The row with branch 0
    is then the whole step, without an activity of its own; it settles with the last of its branches.
    """

    run = part_of(PipelineRun, "steps")
    step = models.CharField(max_length=63)
    branch = models.IntegerField(default=0)
    position = models.IntegerField()
    status = models.CharField(max_length=10, choices=StepState.choices, default=StepState.PENDING)
    reason = models.CharField(
        max_length=12, choices=StepReason.choices, blank=True, default="", db_default=""
    )
    error = models.JSONField(
        null=True, blank=True, help_text="Why the step failed before it had an activity."
    )
    activity_id = models.UUIDField(null=True)
    output_ref = models.UUIDField(null=True)
    round = models.PositiveSmallIntegerField(default=1)
    branches = models.PositiveIntegerField(
        null=True, help_text="The number of branches; only in the row of the step as a whole."
    )
    unsettled_branches = models.IntegerField(default=0, db_default=0)
    failed_branches = models.IntegerField(default=0, db_default=0)
    waits_until = models.DateTimeField(
        null=True,
        help_text="The time at which it fails if the steps that it depends on have not ended. Empty until the first of them starts.",
    )
    settled_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("run", "position", "branch")
        constraints = (unique("step_once_per_run", "run", "step", "branch"),)
        indexes = (
            index("step_waits_until", "waits_until", waits_until__isnull=False),
            index("step_evaluating", "run", reason="evaluating"),
            index("step_without_room", "run", reason="backlog"),
        )

    def __str__(self) -> str:
        return f"{self.step}: {self.status}"
