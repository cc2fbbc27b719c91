from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models

# So many rows at a time, each in a transaction of its own, beside work that goes on. What is there when this begins and has another
# status than `done` gets what its index needs; the trigger does so for whatever changes meanwhile. Repeated, it goes on.
NOTED = """
DO $do$
DECLARE
    after uuid := '00000000-0000-0000-0000-000000000000';
    until uuid;
BEGIN
    LOOP
        SELECT id INTO until FROM (SELECT id FROM activities_activity WHERE id > after ORDER BY id LIMIT 5000) portion ORDER BY id DESC LIMIT 1;
        EXIT WHEN until IS NULL;
        UPDATE activities_activity
        SET indexed_status = CASE WHEN status IN ('created', 'assigned', 'in_progress') THEN 'open' ELSE status END
        WHERE id > after AND id <= until AND status <> 'done' AND indexed_status = 'done';
        COMMIT;
        after := until;
    END LOOP;
END $do$
"""
ONCE_WHILE_LIVE = models.UniqueConstraint(
    condition=models.Q(
        ("dedup_key__isnull", False),
        (
            "indexed_status__in",
            ["awaiting_approval", "awaiting_review", "awaiting_subtask", "blocked", "open"],
        ),
    ),
    fields=("tenant", "dedup_key"),
    name="activity_once_while_live",
)


class Migration(migrations.Migration):
    """No index of activities has a column that a claim changes, so that claims write no entries of indexes."""

    # As in 0024.
    atomic = False
    dependencies = [("activities", "0034_indexed_status")]

    operations = [
        migrations.RunSQL(NOTED, migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(("indexed_status", ""), _negated=True),
                fields=["tenant", "indexed_status", "created_at"],
                name="activities_of_status",
            ),
        ),
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(
                    ("expires_at__isnull", False),
                    ("indexed_status__in", ["awaiting_review", "awaiting_subtask", "blocked", "open"]),
                ),
                fields=["expires_at"],
                name="activities_that_expire",
            ),
        ),
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(("assignee_type", "human"), ("indexed_status", "open")),
                fields=["tenant", "human_role"],
                name="activities_of_inboxes",
            ),
        ),
        migrations.SeparateDatabaseAndState(
            [
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS activity_once_while_live", migrations.RunSQL.noop
                ),
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY activity_once_while_live ON activities_activity (tenant_id, dedup_key)"
                    " WHERE dedup_key IS NOT NULL"
                    " AND indexed_status IN ('awaiting_approval', 'awaiting_review', 'awaiting_subtask', 'blocked', 'open')",
                    "DROP INDEX CONCURRENTLY activity_once_while_live",
                ),
            ],
            [migrations.AddConstraint("activity", ONCE_WHILE_LIVE)],
        ),
        migrations.SeparateDatabaseAndState(
            [
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY activity_dedup_while_live",
                    "CREATE UNIQUE INDEX CONCURRENTLY activity_dedup_while_live ON activities_activity (tenant_id, dedup_key)"
                    " WHERE dedup_key IS NOT NULL AND status IN ('assigned', 'awaiting_approval', 'awaiting_review',"
                    " 'awaiting_subtask', 'blocked', 'created', 'in_progress')",
                )
            ],
            [migrations.RemoveConstraint("activity", "activity_dedup_while_live")],
        ),
        RemoveIndexConcurrently(model_name="activity", name="activity_inbox"),
        RemoveIndexConcurrently(model_name="activity", name="activities_expiring"),
        RemoveIndexConcurrently(model_name="activity", name="activities_by_status"),
    ]
