from django.contrib.postgres.operations import RemoveIndexConcurrently
from django.db import migrations, models

ONCE_PER_STEP = models.UniqueConstraint(
    "pipeline_run_id",
    "step",
    "branch",
    "round",
    models.Case(
        models.When(
            models.Q(("link_kind__isnull", True), ("link_kind", "revision_of"), _connector="OR"), then=True
        )
    ),
    condition=models.Q(("pipeline_run_id__isnull", False)),
    name="activity_of_step_once",
)


class Migration(migrations.Migration):
    """One index for the work of a run and for that there is one activity for each round of a step, instead of two. None for the order of
    time of outputs under way: their ids have it."""

    # As in 0024.
    atomic = False
    dependencies = [("activities", "0032_lists_in_order_of_time")]

    operations = [
        migrations.SeparateDatabaseAndState(
            [
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS activity_of_step_once", migrations.RunSQL.noop
                ),
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY activity_of_step_once ON activities_activity (pipeline_run_id, step, branch, round,"
                    " (CASE WHEN link_kind IS NULL OR link_kind = 'revision_of' THEN true END)) WHERE pipeline_run_id IS NOT NULL",
                    "DROP INDEX CONCURRENTLY activity_of_step_once",
                ),
            ],
            [migrations.AddConstraint("activity", ONCE_PER_STEP)],
        ),
        migrations.SeparateDatabaseAndState(
            [
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY activity_once_per_step",
                    "CREATE UNIQUE INDEX CONCURRENTLY activity_once_per_step ON activities_activity (pipeline_run_id, step, branch, round)"
                    " WHERE pipeline_run_id IS NOT NULL AND (link_kind IS NULL OR link_kind = 'revision_of')",
                )
            ],
            [migrations.RemoveConstraint("activity", "activity_once_per_step")],
        ),
        RemoveIndexConcurrently(model_name="activity", name="activity_of_step"),
        RemoveIndexConcurrently(model_name="outputspool", name="spool_oldest"),
    ]
