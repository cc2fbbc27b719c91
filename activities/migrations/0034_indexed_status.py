from django.db import migrations, models

from activities import states


class Migration(migrations.Migration):
    """What indexes know of a status. What is there has `done`, which costs nothing; the next migration says what is not."""

    dependencies = [("activities", "0033_fewer_indexes")]

    operations = [
        migrations.SeparateDatabaseAndState(
            [
                migrations.RunSQL(
                    [
                        "ALTER TABLE activities_activity ADD COLUMN indexed_status varchar(20) NOT NULL DEFAULT 'done'",
                        "ALTER TABLE activities_activity ALTER COLUMN indexed_status SET DEFAULT 'open'",
                    ],
                    "ALTER TABLE activities_activity DROP COLUMN indexed_status",
                )
            ],
            [
                migrations.AddField(
                    model_name="activity",
                    name="indexed_status",
                    field=models.CharField(
                        db_default="open",
                        editable=False,
                        help_text="See `states.INDEXED`. A trigger sets it.",
                        max_length=20,
                    ),
                )
            ],
        ),
        migrations.RunSQL(states.install_status_guard(), states.install_status_guard(is_indexed=False)),
        # Room for a claim's version of a row on the page where it stands: elsewhere it would need entries of indexes after all.
        migrations.RunSQL(
            "ALTER TABLE activities_activity SET (fillfactor = 85)",
            "ALTER TABLE activities_activity RESET (fillfactor)",
        ),
    ]
