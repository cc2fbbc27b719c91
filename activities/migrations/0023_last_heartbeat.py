from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0022_outages"),
    ]

    operations = [
        migrations.AddField(
            model_name="activityrun",
            name="beat_at",
            field=models.DateTimeField(
                help_text="When the last heartbeat arrived; only for people. Recovery compares only `beats`.",
                null=True,
            ),
        ),
    ]
