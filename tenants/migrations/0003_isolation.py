"""Row-level security, keys with the tenant, and tables that only functions or some roles may write."""

from django.db import migrations

from tenants.row_security import IsolateTenant, TenantKey

# Whoever presents a token's hash may read that one row: this is how a request learns its tenant.
PRESENTED = "secret_hash = nullif(current_setting('app.token_hash', true), '')"
# A person who signed in may see which tenants are theirs.
OWN_MEMBERSHIP = "user_id = nullif(current_setting('app.user_id', true), '')::integer"
# Both learn the tenant's name and whether it is active in the same query. The conditions on the inner tables are repeated by their policies.
PRESENTER = """EXISTS (SELECT FROM tenants_apitoken t WHERE t.tenant_id = tenants_tenant.id
    AND t.secret_hash = nullif(current_setting('app.token_hash', true), ''))"""
MEMBER = """EXISTS (SELECT FROM tenants_membership m WHERE m.tenant_id = tenants_tenant.id
    AND m.user_id = nullif(current_setting('app.user_id', true), '')::integer)"""
# Which tenants there are is the platform's business; so are the entries of its own chain in the audit trail.
PLATFORM = "current_setting('app.admin_platform', true) = 'on'"

TABLES = (
    "auditentry",
    "budget",
    "budgetwait",
    "channel",
    "event",
    "eventlog",
    "forgottenoutput",
    "freshevent",
    "idempotentrequest",
    "pause",
    "reservation",
    "retentionpolicy",
    "retentiontally",
    "savedview",
    "usageentry",
    "usagetotal",
    "webhookdelivery",
    "webhookendpoint",
)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_tables")]

    operations = [
        IsolateTenant("tenants_tenant", "id"),
        IsolateTenant("tenants_apitoken", or_visible=PRESENTED),
        IsolateTenant("tenants_membership", or_visible=OWN_MEMBERSHIP),
        *[IsolateTenant(f"tenants_{table}") for table in TABLES],
        migrations.RunSQL(
            [
                f"CREATE POLICY token_presenter ON tenants_tenant FOR SELECT USING ({PRESENTER})",
                f"CREATE POLICY member ON tenants_tenant FOR SELECT USING ({MEMBER})",
                f"CREATE POLICY platform ON tenants_tenant TO orchestrator_admin USING ({PLATFORM}) WITH CHECK ({PLATFORM})",
                "CREATE POLICY platform ON tenants_auditentry FOR SELECT TO orchestrator_admin "
                f"USING (tenant_id IS NULL AND {PLATFORM})",
            ]
        ),
        TenantKey("tenants_budgetwait", "budget_id", "tenants_budget"),
        TenantKey("tenants_reservation", "budget_id", "tenants_budget"),
        TenantKey("tenants_savedview", "membership_id", "tenants_membership"),
        TenantKey("tenants_webhookdelivery", "endpoint_id", "tenants_webhookendpoint"),
        migrations.RunSQL(
            [
                # Like the history of activities, the ledger is only ever added to.
                "REVOKE UPDATE, DELETE ON tenants_usageentry FROM orchestrator_app, orchestrator_system",
                # What has happened stays so.
                "REVOKE UPDATE ON tenants_event FROM orchestrator_app, orchestrator_system",
                "REVOKE DELETE ON tenants_breakglass FROM orchestrator_app, orchestrator_system",
                # A function alone adds to totals.
                "REVOKE INSERT, UPDATE, DELETE ON tenants_usagetotal FROM orchestrator_app, orchestrator_system",
                # Who has left, and when rows are due to be deleted, does not concern requests.
                "REVOKE INSERT, UPDATE, DELETE ON tenants_departedtenant, tenants_retentionpass FROM orchestrator_app",
            ]
        ),
    ]
