"""The audit trail, broken glass, and a role of its own for the admin."""

from pathlib import Path

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import ADMIN_POLICIES_OF_ALL_TABLES, IsolateTenant

SQL = Path(__file__).resolve().parent.parent / "sql"
ADMIN_ROLE = (SQL / "admin_role.sql").read_text(encoding="utf-8")
CONTENT = (SQL / "audit" / "content.sql").read_text(encoding="utf-8").strip()
GUARDS = (SQL / "audit" / "guards.sql").read_text(encoding="utf-8").replace("{content}", CONTENT)

# Which tenants there are is the platform's business; so are the entries of its own chain.
PLATFORM = "current_setting('app.admin_platform', true) = 'on'"


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0007_events"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunSQL([ADMIN_ROLE], migrations.RunSQL.noop),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("chain", models.UUIDField(help_text="The tenant's id; zeros for the platform.")),
                ("number", models.BigIntegerField()),
                ("at", models.DateTimeField()),
                (
                    "actor_kind",
                    models.CharField(help_text="user, token, run, command or nobody", max_length=16),
                ),
                ("actor_id", models.CharField(blank=True, max_length=100)),
                ("actor_name", models.CharField(blank=True, max_length=200)),
                ("operation", models.CharField(max_length=200)),
                (
                    "outcome",
                    models.CharField(default="done", help_text="done, refused or failed", max_length=16),
                ),
                ("object_kind", models.CharField(blank=True, max_length=100)),
                ("object_id", models.CharField(blank=True, max_length=200)),
                (
                    "changes",
                    models.JSONField(
                        default=dict,
                        help_text="The values before and after, by field, without secrets and texts.",
                    ),
                ),
                ("detail", models.JSONField(default=dict)),
                ("request_id", models.CharField(blank=True, max_length=64)),
                ("ip", models.CharField(blank=True, max_length=45)),
                ("break_glass_id", models.UUIDField(null=True)),
                ("previous_hash", models.CharField(max_length=64)),
                ("hash", models.CharField(max_length=64)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "indexes": [models.Index(fields=["tenant", "object_id"], name="audit_of_object")],
                "constraints": [
                    models.UniqueConstraint(fields=("chain", "number"), name="audit_number_once_per_chain")
                ],
            },
        ),
        migrations.CreateModel(
            name="BreakGlass",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "opened_for",
                    models.UUIDField(help_text="The tenant's id. Empty for all tenants.", null=True),
                ),
                ("slug", models.CharField(blank=True, max_length=63)),
                ("reason", models.CharField(max_length=500)),
                (
                    "opened_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("expires_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "break glass",
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=["user"],
                        name="glass_that_is_broken",
                    )
                ],
            },
        ),
        IsolateTenant("tenants_auditentry"),
        migrations.RunSQL([ADMIN_POLICIES_OF_ALL_TABLES], migrations.RunSQL.noop),
        migrations.RunSQL([GUARDS], migrations.RunSQL.noop),
        migrations.RunSQL(
            [
                f"CREATE POLICY platform ON tenants_tenant TO orchestrator_admin USING ({PLATFORM}) WITH CHECK ({PLATFORM})",
                "CREATE POLICY platform ON tenants_auditentry FOR SELECT TO orchestrator_admin "
                f"USING (tenant_id IS NULL AND {PLATFORM})",
                "REVOKE DELETE ON tenants_breakglass FROM orchestrator_app, orchestrator_system",
            ],
            migrations.RunSQL.noop,
        ),
    ]
