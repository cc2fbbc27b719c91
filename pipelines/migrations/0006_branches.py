from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pipelines", "0005_schedules"),
        ("tenants", "0005_channels"),
    ]

    operations = [
        migrations.AddField(
            model_name="steprun",
            name="branches",
            field=models.PositiveIntegerField(
                help_text="The number of branches; only in the row of the step as a whole.", null=True
            ),
        ),
        migrations.AddField(
            model_name="steprun",
            name="error",
            field=models.JSONField(
                blank=True, help_text="Why the step failed before it had an activity.", null=True
            ),
        ),
        migrations.AddField(
            model_name="steprun",
            name="failed_branches",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="steprun",
            name="reason",
            field=models.CharField(
                blank=True,
                choices=[
                    ("condition", "its condition is false"),
                    ("upstream", "a step before it failed, or none before it was needed"),
                    ("evaluating", "its condition is being evaluated"),
                ],
                db_default="",
                default="",
                max_length=12,
            ),
        ),
        migrations.AddField(
            model_name="steprun",
            name="unsettled_branches",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="steprun",
            name="waits_until",
            field=models.DateTimeField(
                help_text="The time at which it fails if the steps that it depends on have not ended. Empty until the first of them starts.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="steprun",
            index=models.Index(
                condition=models.Q(("waits_until__isnull", False)),
                fields=["waits_until"],
                name="step_waits_until",
            ),
        ),
        migrations.AddIndex(
            model_name="steprun",
            index=models.Index(
                condition=models.Q(("reason", "evaluating")), fields=["run"], name="step_evaluating"
            ),
        ),
    ]
