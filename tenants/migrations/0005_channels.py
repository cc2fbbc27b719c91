import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0004_requests"),
    ]

    operations = [
        migrations.CreateModel(
            name="Channel",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("kind", models.CharField(help_text="For example google-ads.", max_length=63)),
                ("name", models.CharField(max_length=200)),
                (
                    "status",
                    models.CharField(
                        choices=[("active", "Active"), ("expired", "Expired"), ("disabled", "Disabled")],
                        default="active",
                        editable=False,
                        max_length=8,
                    ),
                ),
                (
                    "status_since",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "expires_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When it expires. Empty if that is not known.",
                        null=True,
                    ),
                ),
                (
                    "details",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Data for agents, such as account numbers. No secrets.",
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
                        condition=models.Q(("expires_at__isnull", False), ("status", "active")),
                        fields=["expires_at"],
                        name="channels_that_expire",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "kind", "name"), name="channel_named_once_per_kind"
                    )
                ],
            },
        ),
        IsolateTenant("tenants_channel"),
    ]
