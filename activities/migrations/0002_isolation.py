from django.db import migrations

from activities import states
from tenants.row_security import IsolateTenant, TenantKey

CHILDREN = ["activities_activityevent", "activities_activityrun", "activities_wake", "activities_outputspool"]

# History is only ever added to. Deleting a tenant cascades with the table owner's rights, which keep working.
APPEND_ONLY = migrations.RunSQL(
    "REVOKE UPDATE, DELETE ON activities_activityevent FROM orchestrator_app, orchestrator_system",
    "GRANT UPDATE, DELETE ON activities_activityevent TO orchestrator_app, orchestrator_system",
)


class Migration(migrations.Migration):
    dependencies = [("activities", "0001_initial")]

    operations = [
        IsolateTenant("activities_activity"),
        *[IsolateTenant(table) for table in CHILDREN],
        TenantKey("activities_activity", "parent_id", "activities_activity"),
        *[TenantKey(table, "activity_id", "activities_activity") for table in CHILDREN],
        migrations.RunSQL(states.install_status_guard(is_indexed=False), states.REMOVE_STATUS_GUARD),
        APPEND_ONLY,
    ]
