from django.db import migrations, models


class Migration(migrations.Migration):
    """A held answer remembers the request that gave it. Processes of the previous version leave it empty."""

    dependencies = [
        ("activities", "0040_names_of_records"),
    ]

    operations = [
        migrations.AddField(
            model_name="heldanswer",
            name="request_id",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The request that gave it, for the audit trail.",
                max_length=64,
            ),
        ),
        migrations.AddField(
            model_name="heldanswer",
            name="ip",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="The address of that request.", max_length=45
            ),
        ),
    ]
