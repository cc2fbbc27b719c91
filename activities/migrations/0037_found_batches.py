from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("activities", "0036_room_for_later_versions")]

    operations = [
        migrations.AddField(
            model_name="providerbatch",
            name="is_found",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether its id is from the provider's list of batches, so that the ids of its answers must confirm it.",
            ),
        ),
    ]
