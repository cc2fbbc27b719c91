from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0005_repeated_submissions"),
        ("tenants", "0005_channels"),
    ]

    operations = [
        migrations.AddField(
            model_name="activity",
            name="schedule_id",
            field=models.UUIDField(
                blank=True,
                help_text="The schedule that it, or the run of its pipeline, comes from.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="activity",
            index=models.Index(
                condition=models.Q(("schedule_id__isnull", False)),
                fields=["tenant", "schedule_id", "-created_at"],
                name="activity_of_schedule",
            ),
        ),
    ]
