from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pipelines", "0006_branches"),
        ("tenants", "0005_channels"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="scheduleexecution",
            name="executions_open",
        ),
        migrations.AddField(
            model_name="scheduleexecution",
            name="touched_at",
            field=models.DateTimeField(
                help_text="The last sign of life of the process that expands it. Empty if no process has begun.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="scheduleexecution",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", True)), fields=["id"], name="executions_open"
            ),
        ),
    ]
