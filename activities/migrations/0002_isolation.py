"""Row-level security, keys with the tenant, and what roles may not read or change."""

from django.db import migrations

from tenants.row_security import IsolateTenant, TenantKey

#: Tables whose rows belong to an activity.
CHILDREN = (
    "activities_activityevent",
    "activities_activityrun",
    "activities_wake",
    "activities_outputspool",
    "approval_linked_activities",
    "activities_vote",
    "activities_deadline",
    "activities_toolcall",
    "activities_deadletter",
    "activities_subagent",
    "activities_batchitem",
    "activities_bulkitem",
    "activities_heldanswer",
    "activities_snoozeditem",
)
OTHERS = (
    "activities_activity",
    "activities_approval",
    "activities_alert",
    "activities_alertdelivery",
    "activities_notificationchannel",
    "activities_repeatedsubmissions",
    "activities_turnedaway",
    "activities_mailbox",
    "activities_mailboxbatch",
    "activities_mailboxitem",
    "activities_providerbatch",
    "activities_bulkjob",
    "activities_failuresinarow",
)
# They tell of the platform and of all tenants together: requests and workers have no part in them, the admin shows them.
OF_THE_PLATFORM = "activities_condition, activities_counter, activities_countingmark, activities_leaderlease, activities_systemjob"


class Migration(migrations.Migration):
    dependencies = [("activities", "0001_tables"), ("tenants", "0003_isolation")]

    operations = [
        *[IsolateTenant(table) for table in (*OTHERS, *CHILDREN)],
        *[TenantKey(table, "activity_id", "activities_activity") for table in CHILDREN],
        TenantKey("activities_activity", "parent_id", "activities_activity"),
        TenantKey("activities_activity", "mailbox_id", "activities_mailbox"),
        TenantKey("activities_approval", "id", "activities_activity"),
        TenantKey("approval_linked_activities", "approval_id", "activities_approval"),
        TenantKey("activities_alertdelivery", "alert_id", "activities_alert"),
        TenantKey("activities_mailboxbatch", "mailbox_id", "activities_mailbox"),
        TenantKey("activities_mailboxitem", "mailbox_id", "activities_mailbox"),
        TenantKey("activities_subagent", "conversation_id", "activities_mailbox"),
        TenantKey("activities_batchitem", "batch_id", "activities_providerbatch"),
        TenantKey("activities_bulkitem", "job_id", "activities_bulkjob"),
        TenantKey("activities_snoozeditem", "membership_id", "tenants_membership"),
        migrations.RunSQL(
            [
                "ALTER TABLE activities_heldanswer ADD CONSTRAINT held_answer_of_user"
                " FOREIGN KEY (user_id) REFERENCES auth_user (id) ON DELETE CASCADE",
                # History is only ever added to. Deleting a tenant cascades with the table owner's rights, which keep working.
                "REVOKE UPDATE, DELETE ON activities_activityevent FROM orchestrator_app, orchestrator_system",
                f"REVOKE ALL ON {OF_THE_PLATFORM} FROM orchestrator_app",
                f"GRANT SELECT ON {OF_THE_PLATFORM} TO orchestrator_admin",
            ]
        ),
    ]
