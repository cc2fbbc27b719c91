from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("activities", "0029_failures_in_a_row")]

    operations = [
        migrations.AddField(
            model_name="activity",
            name="period_id",
            field=models.UUIDField(
                blank=True,
                help_text="The period (month) of its deliverable that it plans or belongs to.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="activity",
            name="template",
            field=models.CharField(
                blank=True,
                help_text="Key of the template of its step.",
                max_length=63,
                null=True,
            ),
        ),
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                fields=["tenant", "period_id", "-created_at"],
                condition=models.Q(period_id__isnull=False),
                name="activity_of_period",
            ),
        ),
    ]
