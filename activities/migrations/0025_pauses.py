from django.db import migrations, models

# Work that is under way heeds a pause of its pipeline, too. Whoever has ended needs it no more.
PIPELINES_OF_LIVE_WORK = """
UPDATE activities_activity a SET pipeline_id = v.pipeline_id
FROM pipelines_pipelinerun r JOIN pipelines_pipelineversion v ON v.id = r.version_id
WHERE r.id = a.pipeline_run_id AND r.status = 'running' AND a.pipeline_id IS NULL
"""


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0024_indexes_that_cannot_mislead"),
        ("tenants", "0012_group_cap"),
        ("pipelines", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="activity",
            name="pipeline_id",
            field=models.UUIDField(
                blank=True, help_text="The pipeline of its run, because pauses name pipelines.", null=True
            ),
        ),
        migrations.AddField(
            model_name="activity",
            name="run_now_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When a person requested a run in spite of pauses. The next run clears it.",
                null=True,
            ),
        ),
        migrations.RunSQL(PIPELINES_OF_LIVE_WORK, migrations.RunSQL.noop),
    ]
