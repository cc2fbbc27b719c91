import django.core.validators
from django.db import migrations, models

import pipelines.models.deliverable


class Migration(migrations.Migration):
    dependencies = [
        ("pipelines", "0013_room_for_later_versions"),
    ]

    operations = [
        migrations.AlterField(
            model_name="dataset",
            name="fields",
            field=models.JSONField(
                help_text='The type of each field: {"id": "string", "enabled": "boolean"}. `id` identifies a row.'
            ),
        ),
        migrations.AlterField(
            model_name="dataset",
            name="location",
            field=models.CharField(
                blank=True, default="", help_text="The URL of the rows, for the source api.", max_length=500
            ),
        ),
        migrations.AlterField(
            model_name="dataset",
            name="version",
            field=models.IntegerField(
                default=1, editable=False, help_text="Increases with every change; used as the ETag."
            ),
        ),
        migrations.AlterField(
            model_name="deliverable",
            name="description",
            field=models.TextField(
                blank=True, default="", help_text="The description that the planner receives."
            ),
        ),
        migrations.AlterField(
            model_name="deliverable",
            name="next_on",
            field=models.DateField(
                default=pipelines.models.deliverable.next_month,
                editable=False,
                help_text="If it is active, a period is due from this day on. The period of the month in which it was created is started by hand.",
            ),
        ),
        migrations.AlterField(
            model_name="deliverable",
            name="params",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="Parameters for every run of its periods. Parameters in the plan take precedence.",
            ),
        ),
        migrations.AlterField(
            model_name="deliverable",
            name="pipelines",
            field=models.JSONField(
                default=list,
                help_text='The keys of the pipelines that its plans may use, such as ["content-brief"].',
            ),
        ),
        migrations.AlterField(
            model_name="deliverable",
            name="target",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many runs of a period should be completed. A period that cannot reach it is at risk.",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AlterField(
            model_name="deliverable",
            name="version",
            field=models.PositiveIntegerField(
                default=1, editable=False, help_text="Increases with every change; used as the ETag."
            ),
        ),
        migrations.AlterField(
            model_name="deliverableperiod",
            name="plan",
            field=models.JSONField(blank=True, help_text="The plan that was accepted.", null=True),
        ),
        migrations.AlterField(
            model_name="deliverableperiod",
            name="plan_faults",
            field=models.JSONField(
                blank=True, default=list, help_text="The errors of the last plan that was refused, by path."
            ),
        ),
        migrations.AlterField(
            model_name="deliverableperiod",
            name="planned",
            field=models.PositiveIntegerField(default=0, help_text="Number of runs in the plan."),
        ),
        migrations.AlterField(
            model_name="deliverableperiod",
            name="target",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="The target of the deliverable; it changes with it until the period has ended.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="firing",
            name="count",
            field=models.IntegerField(default=1, help_text="The number of times in this record."),
        ),
        migrations.AlterField(
            model_name="firing",
            name="last_at",
            field=models.DateTimeField(
                help_text="The end of a long series of skipped times, which is one record that begins at nominal_at.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="firing",
            name="reason",
            field=models.CharField(
                blank=True, default="", help_text="Why the time was skipped.", max_length=200
            ),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="failed",
            field=models.BooleanField(
                default=False, help_text="Whether there is a failure that no later step makes up for."
            ),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="plan_item",
            field=models.PositiveSmallIntegerField(
                blank=True, help_text="Its position in the period's plan.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="replay_from",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The first step that is replayed.",
                max_length=63,
            ),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="replay_input",
            field=models.JSONField(
                blank=True,
                help_text="The input of that step, instead of the outputs of the steps before it.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="replay_of",
            field=models.UUIDField(blank=True, help_text="The ended run that it replays.", null=True),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="requested_identity",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="The identity of the caller who started it. Unlike a name, nobody can choose it.",
                max_length=100,
            ),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="retry",
            field=models.JSONField(
                blank=True, db_default={}, default=dict, help_text="For steps that do not set their own."
            ),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="timeout_seconds",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="The timeout of each attempt, for steps that do not set their own.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="pipelinerun",
            name="unsettled",
            field=models.IntegerField(help_text="Number of steps that are not done, failed or skipped."),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="beat_task_id",
            field=models.IntegerField(
                editable=False, help_text="The id of its row among the periodic tasks of beat.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="catch_up",
            field=models.JSONField(
                default=dict,
                help_text='{"up_to": n}: how many of the missed times are made up for, newest first.',
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="interval_ms",
            field=models.BigIntegerField(
                blank=True, help_text="Milliseconds between runs, instead of cron.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="looked_until",
            field=models.DateTimeField(
                editable=False,
                help_text="Every time until then was fired, or recorded as skipped.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="next_run_at",
            field=models.DateTimeField(
                editable=False,
                help_text="The next time, including jitter. Empty if there is none.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="params",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="The parameters. A value that is a data source string is expanded into jobs.",
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="start_at",
            field=models.DateTimeField(
                blank=True,
                help_text="The time of a one-time schedule, or the earliest time of a repeating one.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="version",
            field=models.IntegerField(
                default=1, editable=False, help_text="Increases with every change; used as the ETag."
            ),
        ),
        migrations.AlterField(
            model_name="scheduleexecution",
            name="definition",
            field=models.JSONField(
                help_text="The target, the parameters and the policies of the schedule when it fired."
            ),
        ),
        migrations.AlterField(
            model_name="scheduleexecution",
            name="nominal_at",
            field=models.DateTimeField(help_text="Empty if it was started by hand.", null=True),
        ),
        migrations.AlterField(
            model_name="scheduleexecution",
            name="schedule_name",
            field=models.CharField(
                help_text="The name of the schedule; kept when the schedule is deleted.", max_length=200
            ),
        ),
        migrations.AlterField(
            model_name="scheduleexecution",
            name="touched_at",
            field=models.DateTimeField(
                help_text="The last sign of life of the process that expands it. Empty if no process has begun.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="schedulejob",
            name="ordinal",
            field=models.IntegerField(
                help_text="Its position in the expansion, so that nothing is expanded twice."
            ),
        ),
        migrations.AlterField(
            model_name="steprun",
            name="branches",
            field=models.PositiveIntegerField(
                help_text="The number of branches; only in the row of the step as a whole.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="steprun",
            name="error",
            field=models.JSONField(
                blank=True, help_text="Why the step failed before it had an activity.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="steprun",
            name="waits_until",
            field=models.DateTimeField(
                help_text="The time at which it fails if the steps that it depends on have not ended. Empty until the first of them starts.",
                null=True,
            ),
        ),
    ]
