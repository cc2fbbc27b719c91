"""The tables of pipelines: their versions and runs, templates, deliverables, schedules and datasets."""

from uuid import UUID

from django.core.validators import MinValueValidator, RegexValidator
from django.db import migrations, models
from django.db.models.functions import Now

from pipelines.models import deliverable
from tenants.identifiers import uuid7

# Room for later versions of a row on the page where it stands: in another place one needs entries of indexes, a lock, and its whole text in
# PostgreSQL's log.
ROOM_FOR_LATER_VERSIONS = [
    "ALTER TABLE pipelines_pipelinerun SET (fillfactor = 75)",
    "ALTER TABLE pipelines_steprun SET (fillfactor = 60)",
]


class Migration(migrations.Migration):
    initial = True
    replaces = [("pipelines", "0016_run_not_before")]  # the last of those that it stands for
    dependencies = [
        ("tenants", "0002_tables"),
    ]

    operations = [
        migrations.CreateModel(
            name="Pipeline",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "key",
                    models.CharField(
                        max_length=63,
                        validators=[
                            RegexValidator(
                                "^[a-z0-9][a-z0-9_-]{0,62}$", "Use lower-case letters, digits, - and _."
                            )
                        ],
                    ),
                ),
                ("name", models.CharField(max_length=200)),
                ("description", models.TextField(blank=True, default="")),
                ("enabled", models.BooleanField(default=True)),
                ("latest", models.PositiveIntegerField(default=0, help_text="Number of the newest version.")),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "created_by",
                    models.CharField(blank=True, db_default="", default="", editable=False, max_length=200),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "key"), name="pipeline_key_once_per_tenant"),
                    models.UniqueConstraint(fields=("tenant", "id"), name="pipeline_of_tenant"),
                ],
            },
        ),
        migrations.CreateModel(
            name="PipelineVersion",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField()),
                ("definition", models.JSONField()),
                ("digest", models.CharField(max_length=64)),
                ("created_by", models.CharField(blank=True, default="", max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "pipeline",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="versions",
                        to="pipelines.pipeline",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ("-number",),
                "constraints": [
                    models.UniqueConstraint(fields=("pipeline", "number"), name="version_number_once"),
                    models.UniqueConstraint(fields=("tenant", "id"), name="pipeline_version_of_tenant"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ActivityTemplate",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "key",
                    models.CharField(
                        max_length=63,
                        validators=[
                            RegexValidator(
                                "^[a-z0-9][a-z0-9_-]{0,62}$", "Use lower-case letters, digits, - and _."
                            )
                        ],
                    ),
                ),
                ("name", models.CharField(max_length=200)),
                ("description", models.TextField(blank=True, default="")),
                ("agent_role", models.CharField(blank=True, default="", max_length=63)),
                ("human_role", models.CharField(blank=True, default="", max_length=63)),
                ("requires_approval", models.BooleanField(default=False)),
                ("is_approval_gate", models.BooleanField(default=False)),
                ("params", models.JSONField(blank=True, default=dict)),
                ("retry", models.JSONField(blank=True, default=dict)),
                ("timeout_seconds", models.PositiveIntegerField(blank=True, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "key"), name="template_key_once_per_tenant")
                ],
            },
        ),
        migrations.CreateModel(
            name="Deliverable",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "key",
                    models.CharField(
                        max_length=63,
                        validators=[
                            RegexValidator(
                                "^[a-z0-9][a-z0-9_-]{0,62}$", "Use lower-case letters, digits, - and _."
                            )
                        ],
                    ),
                ),
                ("name", models.CharField(max_length=200)),
                (
                    "description",
                    models.TextField(
                        blank=True, default="", help_text="The description that the planner receives."
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[("active", "Active"), ("paused", "Paused"), ("ended", "Ended")],
                        default="active",
                        max_length=10,
                    ),
                ),
                (
                    "next_on",
                    models.DateField(
                        default=deliverable.next_month,
                        editable=False,
                        help_text="If it is active, a period is due from this day on. The period of the month in which it was created is started by hand.",
                    ),
                ),
                (
                    "pipelines",
                    models.JSONField(
                        default=list,
                        help_text='The keys of the pipelines that its plans may use, such as ["content-brief"].',
                    ),
                ),
                (
                    "params",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Parameters for every run of its periods. Parameters in the plan take precedence.",
                    ),
                ),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=1,
                        editable=False,
                        help_text="Increases with every change; the ETag begins with it.",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "target",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many runs of a period should be completed. A period that cannot reach it is at risk.",
                        null=True,
                        validators=[MinValueValidator(1)],
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "active")), fields=["next_on"], name="deliverable_due"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "key"), name="deliverable_key_once_per_tenant"),
                    models.UniqueConstraint(fields=("tenant", "id"), name="deliverable_of_tenant"),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeliverablePeriod",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("starts_on", models.DateField()),
                ("ends_on", models.DateField(help_text="The last day of the month.")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("planning", "Planning"),
                            ("active", "Active"),
                            ("completed", "Completed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="planning",
                        max_length=10,
                    ),
                ),
                ("planned", models.PositiveIntegerField(default=0, help_text="Number of runs in the plan.")),
                ("completed", models.PositiveIntegerField(default=0)),
                ("failed", models.PositiveIntegerField(default=0)),
                ("cancelled", models.PositiveIntegerField(default=0)),
                ("at_risk", models.BooleanField(default=False)),
                ("at_risk_reason", models.TextField(blank=True, default="")),
                ("plan", models.JSONField(blank=True, help_text="The plan that was accepted.", null=True)),
                (
                    "plan_faults",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="The errors of the last plan that was refused, by path.",
                    ),
                ),
                ("planner_activity_id", models.UUIDField(help_text="The activity whose output is the plan.")),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("ended_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "deliverable",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.PROTECT,
                        related_name="periods",
                        to="pipelines.deliverable",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "target",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="The target of the deliverable; it changes with it until the period has ended.",
                        null=True,
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant", "-starts_on", "-id"], name="period_newest")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("deliverable", "starts_on"), name="period_once_per_month"
                    ),
                    models.UniqueConstraint(fields=("tenant", "id"), name="period_of_tenant"),
                ],
            },
        ),
        migrations.CreateModel(
            name="PipelineRun",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("completed", "Completed"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="running",
                        max_length=12,
                    ),
                ),
                ("params", models.JSONField(blank=True, default=dict)),
                ("input", models.JSONField(blank=True, null=True)),
                ("deliverable_id", models.UUIDField(blank=True, null=True)),
                ("priority", models.SmallIntegerField(default=10)),
                (
                    "unsettled",
                    models.IntegerField(help_text="Number of steps that are not done, failed or skipped."),
                ),
                (
                    "failed",
                    models.BooleanField(
                        default=False, help_text="Whether there is a failure that no later step makes up for."
                    ),
                ),
                ("created_by", models.CharField(blank=True, default="", max_length=200)),
                ("started_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("finished_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=models.PROTECT,
                        related_name="runs",
                        to="pipelines.pipelineversion",
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        blank=True, default="", help_text="What this run is about.", max_length=200
                    ),
                ),
                (
                    "plan_item",
                    models.PositiveSmallIntegerField(
                        blank=True, help_text="Its position in the period's plan.", null=True
                    ),
                ),
                (
                    "period",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.PROTECT,
                        related_name="runs",
                        to="pipelines.deliverableperiod",
                    ),
                ),
                (
                    "requested_identity",
                    models.CharField(
                        blank=True,
                        db_default="",
                        help_text="The identity of the caller who started it. Unlike a name, nobody can choose it.",
                        max_length=100,
                    ),
                ),
                (
                    "retry",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="For steps that do not set their own.",
                    ),
                ),
                (
                    "schedule_id",
                    models.UUIDField(blank=True, help_text="The schedule that it comes from.", null=True),
                ),
                (
                    "timeout_seconds",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="The timeout of each attempt, for steps that do not set their own.",
                        null=True,
                    ),
                ),
                (
                    "replay_from",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="The first step that is replayed.",
                        max_length=63,
                    ),
                ),
                (
                    "replay_input",
                    models.JSONField(
                        blank=True,
                        help_text="The input of that step, instead of the outputs of the steps before it.",
                        null=True,
                    ),
                ),
                (
                    "replay_of",
                    models.UUIDField(blank=True, help_text="The ended run that it replays.", null=True),
                ),
                (
                    "labels",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="Names and texts by which people find it.",
                    ),
                ),
                (
                    "not_before",
                    models.DateTimeField(
                        editable=False,
                        help_text="The date of its first steps, also of those that wait for room.",
                        null=True,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("tenant__gt", UUID(int=0))),
                        fields=["tenant", "-started_at", "-id"],
                        name="pipeline_runs_listed",
                    ),
                    models.Index(
                        condition=models.Q(("schedule_id__isnull", False)),
                        fields=["tenant", "schedule_id", "-started_at"],
                        name="pipeline_run_of_schedule",
                    ),
                    models.Index(
                        condition=models.Q(("replay_of__isnull", False)),
                        fields=["tenant", "replay_of"],
                        name="pipeline_run_replays",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="pipeline_run_of_tenant"),
                    models.UniqueConstraint(
                        condition=models.Q(("period__isnull", False)),
                        fields=("period", "plan_item"),
                        name="plan_item_run_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="StepRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("step", models.CharField(max_length=63)),
                ("branch", models.IntegerField(default=0)),
                ("position", models.IntegerField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("active", "Active"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("skipped", "Skipped"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("activity_id", models.UUIDField(null=True)),
                ("output_ref", models.UUIDField(null=True)),
                ("round", models.PositiveSmallIntegerField(default=1)),
                ("settled_at", models.DateTimeField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="steps",
                        to="pipelines.pipelinerun",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "branches",
                    models.PositiveIntegerField(
                        help_text="The number of branches; only in the row of the step as a whole.", null=True
                    ),
                ),
                (
                    "error",
                    models.JSONField(
                        blank=True, help_text="Why the step failed before it had an activity.", null=True
                    ),
                ),
                ("failed_branches", models.IntegerField(db_default=0, default=0)),
                (
                    "reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("condition", "its condition is false"),
                            ("upstream", "a step before it failed, or none before it was needed"),
                            ("evaluating", "its condition is being evaluated"),
                            ("backlog", "as much work of its role is waiting as may wait"),
                        ],
                        db_default="",
                        default="",
                        max_length=12,
                    ),
                ),
                ("unsettled_branches", models.IntegerField(db_default=0, default=0)),
                (
                    "waits_until",
                    models.DateTimeField(
                        help_text="The time at which it fails if the steps that it depends on have not ended. Empty until the first of them starts.",
                        null=True,
                    ),
                ),
            ],
            options={
                "ordering": ("run", "position", "branch"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("waits_until__isnull", False)),
                        fields=["waits_until"],
                        name="step_waits_until",
                    ),
                    models.Index(
                        condition=models.Q(("reason", "evaluating")), fields=["run"], name="step_evaluating"
                    ),
                    models.Index(
                        condition=models.Q(("reason", "backlog")), fields=["run"], name="step_without_room"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "step", "branch"), name="step_once_per_run")
                ],
            },
        ),
        migrations.CreateModel(
            name="Dataset",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(
                        max_length=63,
                        validators=[
                            RegexValidator(
                                "^(?!.*__)[A-Za-z][A-Za-z0-9_-]{0,62}\\Z",
                                "Use letters, digits and single _ and -, beginning with a letter.",
                            )
                        ],
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        choices=[("db", "Database"), ("api", "API"), ("file", "File"), ("cache", "Cache")],
                        default="db",
                        max_length=5,
                    ),
                ),
                (
                    "location",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The URL of the rows, for the source api.",
                        max_length=500,
                    ),
                ),
                ("description", models.TextField(blank=True, default="")),
                (
                    "fields",
                    models.JSONField(
                        help_text='The type of each field: {"id": "string", "enabled": "boolean"}. `id` identifies a row.'
                    ),
                ),
                (
                    "version",
                    models.IntegerField(
                        default=1,
                        editable=False,
                        help_text="Increases with every change; the ETag begins with it.",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="dataset_of_tenant"),
                    models.UniqueConstraint(fields=("tenant", "name"), name="dataset_name_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="DatasetRow",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("key", models.CharField(max_length=200)),
                ("data", models.JSONField()),
                (
                    "dataset",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="rows",
                        to="pipelines.dataset",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ("dataset", "id"),
                "indexes": [models.Index(fields=["dataset", "id"], name="rows_in_order")],
                "constraints": [models.UniqueConstraint(fields=("dataset", "key"), name="row_once_per_key")],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                ("description", models.TextField(blank=True, default="")),
                (
                    "repeat",
                    models.CharField(
                        choices=[("once", "Once"), ("repeating", "Repeating")],
                        default="repeating",
                        max_length=10,
                    ),
                ),
                (
                    "cron",
                    models.CharField(
                        blank=True, default="", help_text="Minute, hour, day, month, weekday.", max_length=200
                    ),
                ),
                (
                    "interval_ms",
                    models.BigIntegerField(
                        blank=True, help_text="Milliseconds between runs, instead of cron.", null=True
                    ),
                ),
                ("timezone", models.CharField(default="America/New_York", max_length=64)),
                (
                    "start_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="The time of a one-time schedule, or the earliest time of a repeating one.",
                        null=True,
                    ),
                ),
                ("end_at", models.DateTimeField(blank=True, null=True)),
                (
                    "target_type",
                    models.CharField(choices=[("agent", "agent"), ("pipeline", "pipeline")], max_length=8),
                ),
                ("agent_role", models.CharField(blank=True, max_length=63, null=True)),
                (
                    "params",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="The parameters. A value that is a data source string is expanded into jobs.",
                    ),
                ),
                ("retry", models.JSONField(blank=True, default=dict)),
                ("timeout_seconds", models.PositiveIntegerField(blank=True, null=True)),
                ("priority", models.SmallIntegerField(default=10)),
                ("enabled", models.BooleanField(default=True)),
                (
                    "dst_gap",
                    models.CharField(
                        choices=[("shift", "shift"), ("skip", "skip")], default="shift", max_length=5
                    ),
                ),
                (
                    "dst_fold",
                    models.CharField(
                        choices=[("first", "first"), ("second", "second"), ("both", "both")],
                        default="first",
                        max_length=6,
                    ),
                ),
                (
                    "catch_up",
                    models.JSONField(
                        default=dict,
                        help_text='{"up_to": n}: how many of the missed times are made up for, newest first.',
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[
                            ("allow", "Allow"),
                            ("skip", "Skip"),
                            ("queue_one", "Queue One"),
                            ("cancel_running", "Cancel Running"),
                        ],
                        default="skip",
                        max_length=14,
                    ),
                ),
                (
                    "after_once",
                    models.CharField(
                        choices=[("disable", "Disable"), ("delete", "Delete")],
                        default="disable",
                        max_length=7,
                    ),
                ),
                ("jitter_seconds", models.PositiveIntegerField(default=0)),
                (
                    "version",
                    models.IntegerField(
                        default=1,
                        editable=False,
                        help_text="Increases with every change; the ETag begins with it.",
                    ),
                ),
                (
                    "looked_until",
                    models.DateTimeField(
                        editable=False,
                        help_text="Every time until then was fired, or recorded as skipped.",
                        null=True,
                    ),
                ),
                (
                    "next_run_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="The next time, including jitter. Empty if there is none.",
                        null=True,
                    ),
                ),
                ("last_run_at", models.DateTimeField(editable=False, null=True)),
                (
                    "beat_task_id",
                    models.IntegerField(
                        editable=False,
                        help_text="The id of its row among the periodic tasks of beat.",
                        null=True,
                    ),
                ),
                ("created_by", models.CharField(blank=True, default="", editable=False, max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "pipeline",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        null=True,
                        on_delete=models.PROTECT,
                        related_name="schedules",
                        to="pipelines.pipeline",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "missed_until",
                    models.DateTimeField(
                        editable=False,
                        help_text="Times before this that were not fired were missed: a pause ended then.",
                        null=True,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("enabled", True), ("next_run_at__isnull", False)),
                        fields=["next_run_at"],
                        name="schedules_due",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="schedule_of_tenant"),
                    models.UniqueConstraint(fields=("tenant", "name"), name="schedule_name_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("agent_role__isnull", False),
                                ("pipeline__isnull", True),
                                ("target_type", "agent"),
                            ),
                            models.Q(
                                ("agent_role__isnull", True),
                                ("pipeline__isnull", False),
                                ("target_type", "pipeline"),
                            ),
                            _connector="OR",
                        ),
                        name="schedule_has_one_target",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Firing",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("nominal_at", models.DateTimeField()),
                (
                    "last_at",
                    models.DateTimeField(
                        help_text="The end of a long series of skipped times, which is one record that begins at nominal_at.",
                        null=True,
                    ),
                ),
                ("count", models.IntegerField(default=1, help_text="The number of times in this record.")),
                (
                    "state",
                    models.CharField(
                        choices=[("fired", "Fired"), ("queued", "Queued"), ("skipped", "Skipped")],
                        max_length=8,
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True, default="", help_text="Why the time was skipped.", max_length=200
                    ),
                ),
                ("at", models.DateTimeField(db_default=Now())),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="firings",
                        to="pipelines.schedule",
                    ),
                ),
            ],
            options={
                "ordering": ("-nominal_at",),
                "constraints": [
                    models.UniqueConstraint(fields=("schedule", "nominal_at"), name="each_time_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduleExecution",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "schedule_name",
                    models.CharField(
                        help_text="The name of the schedule; kept when the schedule is deleted.",
                        max_length=200,
                    ),
                ),
                ("nominal_at", models.DateTimeField(help_text="Empty if it was started by hand.", null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("success", "Success"),
                            ("partial", "Partial"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="running",
                        max_length=9,
                    ),
                ),
                (
                    "definition",
                    models.JSONField(
                        help_text="The target, the parameters and the policies of the schedule when it fired."
                    ),
                ),
                ("jobs_created", models.IntegerField(default=0)),
                ("jobs_enqueued", models.IntegerField(default=0)),
                ("jobs_failed", models.IntegerField(default=0)),
                ("errors", models.JSONField(default=list)),
                ("metadata", models.JSONField(default=dict)),
                ("expanded_at", models.DateTimeField(help_text="When the last job was recorded.", null=True)),
                ("created_by", models.CharField(default="schedule", max_length=200)),
                ("started_at", models.DateTimeField(db_default=Now())),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "schedule",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.SET_NULL,
                        related_name="executions",
                        to="pipelines.schedule",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "touched_at",
                    models.DateTimeField(
                        help_text="The last sign of life of the process that expands it. Empty if no process has begun.",
                        null=True,
                    ),
                ),
            ],
            options={
                "ordering": ("-started_at",),
                "indexes": [
                    models.Index(fields=["tenant", "-started_at", "-id"], name="executions_newest"),
                    models.Index(fields=["schedule", "status"], name="executions_of_schedule"),
                    models.Index(fields=["schedule", "-started_at", "-id"], name="executions_newest_of_one"),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", True)),
                        fields=["id"],
                        name="executions_open",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="execution_of_tenant"),
                    models.UniqueConstraint(
                        condition=models.Q(("nominal_at__isnull", False)),
                        fields=("schedule", "nominal_at"),
                        name="one_execution_per_time",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("status", "queued")),
                        fields=("schedule",),
                        name="one_queued_execution",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduleJob",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "ordinal",
                    models.IntegerField(
                        help_text="Its position in the expansion, so that nothing is expanded twice."
                    ),
                ),
                ("batch", models.IntegerField()),
                ("due_at", models.DateTimeField()),
                ("params", models.JSONField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("enqueued", "Enqueued"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="enqueued",
                        max_length=9,
                    ),
                ),
                ("activity_id", models.UUIDField(null=True)),
                ("pipeline_run_id", models.UUIDField(null=True)),
                ("error", models.JSONField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "execution",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="jobs",
                        to="pipelines.scheduleexecution",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ("execution", "ordinal"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["waiting", "enqueued"])),
                        fields=["execution", "batch"],
                        name="jobs_open",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("execution", "ordinal"), name="job_once_per_execution"),
                    models.UniqueConstraint(
                        condition=models.Q(("activity_id__isnull", False)),
                        fields=("activity_id",),
                        name="job_of_activity",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("pipeline_run_id__isnull", False)),
                        fields=("pipeline_run_id",),
                        name="job_of_pipeline_run",
                    ),
                ],
            },
        ),
        migrations.RunSQL(ROOM_FOR_LATER_VERSIONS),
    ]
