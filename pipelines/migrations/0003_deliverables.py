import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import pipelines.models.deliverable
import tenants.identifiers
from tenants.row_security import IsolateTenant, TenantKey


class Migration(migrations.Migration):
    dependencies = [
        ("pipelines", "0002_isolation"),
        ("tenants", "0003_isolation"),
    ]

    operations = [
        migrations.AddField(
            model_name="pipelinerun",
            name="name",
            field=models.CharField(
                blank=True, default="", help_text="What this run is about.", max_length=200
            ),
        ),
        migrations.AddField(
            model_name="pipelinerun",
            name="plan_item",
            field=models.PositiveSmallIntegerField(
                blank=True, help_text="Its position in the period's plan.", null=True
            ),
        ),
        migrations.CreateModel(
            name="Deliverable",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "key",
                    models.CharField(
                        max_length=63,
                        validators=[
                            django.core.validators.RegexValidator(
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
                        default=pipelines.models.deliverable.next_month,
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
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
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
                (
                    "planned",
                    models.PositiveIntegerField(default=0, help_text="Number of runs in the plan."),
                ),
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
                (
                    "planner_activity_id",
                    models.UUIDField(help_text="The activity whose output is the plan."),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("ended_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "deliverable",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="periods",
                        to="pipelines.deliverable",
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
                "indexes": [models.Index(fields=["tenant", "-starts_on", "-id"], name="period_newest")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("deliverable", "starts_on"), name="period_once_per_month"
                    ),
                    models.UniqueConstraint(fields=("tenant", "id"), name="period_of_tenant"),
                ],
            },
        ),
        migrations.AddField(
            model_name="pipelinerun",
            name="period",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="runs",
                to="pipelines.deliverableperiod",
            ),
        ),
        migrations.AddConstraint(
            model_name="pipelinerun",
            constraint=models.UniqueConstraint(
                condition=models.Q(("period__isnull", False)),
                fields=("period", "plan_item"),
                name="plan_item_run_once",
            ),
        ),
        IsolateTenant("pipelines_deliverable"),
        IsolateTenant("pipelines_deliverableperiod"),
        TenantKey(
            "pipelines_deliverableperiod", "deliverable_id", "pipelines_deliverable", on_delete="NO ACTION"
        ),
        TenantKey("pipelines_pipelinerun", "period_id", "pipelines_deliverableperiod", on_delete="NO ACTION"),
    ]
