import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant, TenantKey


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0003_people"),
        ("tenants", "0004_requests"),
    ]

    operations = [
        migrations.CreateModel(
            name="Alert",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("kind", models.CharField(max_length=32)),
                (
                    "severity",
                    models.CharField(
                        choices=[("info", "Info"), ("warning", "Warning"), ("critical", "Critical")],
                        default="warning",
                        max_length=8,
                    ),
                ),
                ("title", models.CharField(max_length=200)),
                ("body", models.TextField(blank=True, default="")),
                ("activity_id", models.UUIDField(blank=True, null=True)),
                (
                    "facts",
                    models.JSONField(blank=True, default=dict, help_text="Ids and numbers for programs."),
                ),
                (
                    "dedup_key",
                    models.CharField(
                        blank=True,
                        help_text="No second alert is created with the same key.",
                        max_length=200,
                        null=True,
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("acknowledged_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("acknowledged_by", models.CharField(blank=True, default="", editable=False, max_length=200)),
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
                    models.Index(fields=["tenant", "-created_at", "-id"], name="alert_newest"),
                    models.Index(
                        condition=models.Q(("activity_id__isnull", False)),
                        fields=["tenant", "activity_id"],
                        name="alerts_of_activity",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="alert_of_tenant"),
                    models.UniqueConstraint(
                        condition=models.Q(("dedup_key__isnull", False)),
                        fields=("tenant", "dedup_key"),
                        name="alert_once_per_dedup_key",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="AlertDelivery",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7,
                        editable=False,
                        help_text="Also used as the `webhook-id` and the Message-ID.",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "channel_kind",
                    models.CharField(
                        choices=[("slack", "Slack"), ("email", "Email"), ("webhook", "Webhook")], max_length=8
                    ),
                ),
                (
                    "channel_id",
                    models.UUIDField(
                        blank=True, help_text="Empty for the platform's own channels.", null=True
                    ),
                ),
                (
                    "channel_name",
                    models.CharField(
                        help_text="The channel's name when the alert was raised.", max_length=100
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("sending", "Sending"),
                            ("sent", "Sent"),
                            ("failed", "Failed"),
                            ("unknown", "Unknown"),
                        ],
                        default="pending",
                        editable=False,
                        max_length=8,
                    ),
                ),
                (
                    "attempts",
                    models.PositiveSmallIntegerField(
                        default=0,
                        help_text="Also identifies the claim: only the latest claim may record a result.",
                    ),
                ),
                (
                    "next_attempt_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="When a deliverer sends it next, or checks the result of an interrupted attempt.",
                    ),
                ),
                ("claimed_at", models.DateTimeField(blank=True, null=True)),
                ("last_error", models.CharField(blank=True, default="", max_length=500)),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "alert",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="activities.alert",
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
                "verbose_name_plural": "alert deliveries",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["pending", "sending"])),
                        fields=["channel_kind", "next_attempt_at"],
                        name="deliveries_due",
                    ),
                    models.Index(
                        condition=models.Q(("state", "pending")),
                        fields=["tenant", "channel_kind", "next_attempt_at", "id"],
                        name="deliveries_in_turn",
                    ),
                    models.Index(
                        condition=models.Q(("state", "sending")),
                        fields=["channel_kind"],
                        name="deliveries_under_way",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("alert", "channel_kind", "channel_id"),
                        name="alert_once_per_channel",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="NotificationChannel",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("slack", "Slack"), ("email", "Email"), ("webhook", "Webhook")], max_length=8
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("target_sealed", models.TextField(editable=False)),
                (
                    "target_shown",
                    models.CharField(
                        editable=False,
                        help_text="The part of the target that is displayed, so that people recognize it.",
                        max_length=300,
                    ),
                ),
                (
                    "kinds",
                    models.JSONField(
                        blank=True, default=list, help_text="The kinds of alerts to send. If empty: all."
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
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
                    models.UniqueConstraint(fields=("tenant", "name"), name="notification_channel_named_once")
                ]
            },
        ),
        IsolateTenant("activities_alert"),
        IsolateTenant("activities_alertdelivery"),
        IsolateTenant("activities_notificationchannel"),
        TenantKey("activities_alertdelivery", "alert_id", "activities_alert"),
    ]
