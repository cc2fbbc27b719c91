from django.db import migrations, models


class Migration(migrations.Migration):
    """A run that begins with its activity keeps its reason itself, so that no wake is recorded for it."""

    dependencies = [("activities", "0037_found_batches")]

    operations = [
        migrations.AddField(
            model_name="activityrun",
            name="own_wake",
            field=models.JSONField(
                editable=False,
                help_text="Of a run that began in the statement that created its activity, so that no wake was recorded: what the wake would "
                "say besides `wake_reason`, as `payload` and `provenance`. Its id is the activity's.",
                null=True,
            ),
        ),
    ]
