import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant, TenantKey


class Migration(migrations.Migration):
    dependencies = [
        ("pipelines", "0004_run_requester"),
        ("tenants", "0005_channels"),
    ]

    operations = [
        migrations.CreateModel(
            name="Dataset",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        max_length=63,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^(?!.*__)[A-Za-z][A-Za-z0-9_-]{0,62}\\Z",
                                "Use letters, digits and single _ and -, beginning with a letter.",
                            )
                        ],
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        choices=[("db", "Db"), ("api", "Api"), ("file", "File"), ("cache", "Cache")],
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
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="dataset_of_tenant"),
                    models.UniqueConstraint(fields=("tenant", "name"), name="dataset_name_once"),
                ]
            },
        ),
        migrations.CreateModel(
            name="DatasetRow",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("key", models.CharField(max_length=200)),
                ("data", models.JSONField()),
                (
                    "dataset",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rows",
                        to="pipelines.dataset",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
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
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "pipeline",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="schedules",
                        to="pipelines.pipeline",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
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
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
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
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "schedule_name",
                    models.CharField(
                        help_text="The name of the schedule; kept when the schedule is deleted.",
                        max_length=200,
                    ),
                ),
                (
                    "nominal_at",
                    models.DateTimeField(help_text="Empty if it was started by hand.", null=True),
                ),
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
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "schedule",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="executions",
                        to="pipelines.schedule",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
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
                        condition=models.Q(("status__in", ["running", "queued"])),
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
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
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
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="jobs",
                        to="pipelines.scheduleexecution",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
        migrations.AddField(
            model_name="pipelinerun",
            name="retry",
            field=models.JSONField(
                blank=True, db_default={}, default=dict, help_text="For steps that do not set their own."
            ),
        ),
        migrations.AddField(
            model_name="pipelinerun",
            name="schedule_id",
            field=models.UUIDField(blank=True, help_text="The schedule that it comes from.", null=True),
        ),
        migrations.AddField(
            model_name="pipelinerun",
            name="timeout_seconds",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="The timeout of each attempt, for steps that do not set their own.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="pipelinerun",
            index=models.Index(
                condition=models.Q(("schedule_id__isnull", False)),
                fields=["tenant", "schedule_id", "-started_at"],
                name="pipeline_run_of_schedule",
            ),
        ),
        *(
            IsolateTenant(f"pipelines_{table}")
            for table in ("schedule", "firing", "scheduleexecution", "schedulejob", "dataset", "datasetrow")
        ),
        TenantKey("pipelines_schedule", "pipeline_id", "pipelines_pipeline", on_delete="NO ACTION"),
        TenantKey("pipelines_firing", "schedule_id", "pipelines_schedule"),
        TenantKey(
            "pipelines_scheduleexecution",
            "schedule_id",
            "pipelines_schedule",
            on_delete="SET NULL (schedule_id)",
        ),
        TenantKey("pipelines_schedulejob", "execution_id", "pipelines_scheduleexecution"),
        TenantKey("pipelines_datasetrow", "dataset_id", "pipelines_dataset"),
    ]
