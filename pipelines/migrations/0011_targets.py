import django.core.validators
from django.db import migrations, models

# The periods that are under way, and what belongs to them, are named by their activities from the first day.
PERIODS_OF_RUNS = """
UPDATE activities_activity a SET period_id = r.period_id
FROM pipelines_pipelinerun r
WHERE r.id = a.pipeline_run_id AND r.period_id IS NOT NULL AND a.period_id IS NULL
"""
PERIODS_OF_PLANNERS = """
UPDATE activities_activity a SET period_id = p.id
FROM pipelines_deliverableperiod p WHERE p.planner_activity_id = a.id AND a.period_id IS NULL
"""
CREATORS = """
UPDATE pipelines_pipeline p SET created_by = v.created_by
FROM pipelines_pipelineversion v WHERE v.pipeline_id = p.id AND v.number = 1
"""


class Migration(migrations.Migration):
    dependencies = [
        ("pipelines", "0010_indexes_that_cannot_mislead"),
        ("activities", "0030_period_and_template"),
    ]

    operations = [
        migrations.AddField(
            model_name="deliverable",
            name="target",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many runs of a period should be completed. A period that cannot reach it is at risk.",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AddField(
            model_name="deliverableperiod",
            name="target",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="The target of the deliverable; it changes with it until the period has ended.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="pipeline",
            name="created_by",
            field=models.CharField(blank=True, db_default="", default="", editable=False, max_length=200),
        ),
        migrations.RunSQL(CREATORS, migrations.RunSQL.noop),
        migrations.RunSQL(PERIODS_OF_RUNS, migrations.RunSQL.noop),
        migrations.RunSQL(PERIODS_OF_PLANNERS, migrations.RunSQL.noop),
    ]
