import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant

# Whoever presents a token, or signed in as a member, learns the tenant's name and whether it is active in the same query.
# The conditions on the inner tables are repeated by their own policies.
PRESENTER = """EXISTS (SELECT FROM tenants_apitoken t WHERE t.tenant_id = tenants_tenant.id
    AND t.secret_hash = nullif(current_setting('app.token_hash', true), ''))"""
MEMBER = """EXISTS (SELECT FROM tenants_membership m WHERE m.tenant_id = tenants_tenant.id
    AND m.user_id = nullif(current_setting('app.user_id', true), '')::integer)"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_isolation")]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="platform",
            field=models.BooleanField(
                default=False,
                help_text="Also allows changes to the registry of agents that all tenants share.",
            ),
        ),
        migrations.CreateModel(
            name="IdempotentRequest",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "digest",
                    models.CharField(
                        help_text="A digest of the caller, the path and the key.", max_length=64
                    ),
                ),
                (
                    "request_digest",
                    models.CharField(
                        help_text="A digest of the request. A different request cannot use the same key.",
                        max_length=64,
                    ),
                ),
                ("status_code", models.PositiveSmallIntegerField()),
                ("headers", models.JSONField(default=dict)),
                ("body", models.BinaryField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
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
                "indexes": [models.Index(fields=["created_at"], name="idempotent_requests_by_age")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "digest"), name="idempotency_key_once")
                ],
            },
        ),
        IsolateTenant("tenants_idempotentrequest"),
        migrations.RunSQL(
            f"CREATE POLICY token_presenter ON tenants_tenant FOR SELECT USING ({PRESENTER})",
            "DROP POLICY token_presenter ON tenants_tenant",
        ),
        migrations.RunSQL(
            f"CREATE POLICY member ON tenants_tenant FOR SELECT USING ({MEMBER})",
            "DROP POLICY member ON tenants_tenant",
        ),
    ]
