from django.db import migrations, models


class Migration(migrations.Migration):
    """When a pause of a schedule ended. Null in old rows, and in those that older processes write: no pause is known."""

    dependencies = [("pipelines", "0013_room_for_later_versions")]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="missed_until",
            field=models.DateTimeField(
                editable=False,
                help_text="Times before this that were not fired were missed: a pause ended then.",
                null=True,
            ),
        ),
    ]
