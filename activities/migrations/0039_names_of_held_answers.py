from django.db import migrations, models


class Migration(migrations.Migration):
    """Fields of held answers are called by what they are. The columns keep their names, so that processes of both versions can run."""

    dependencies = [("activities", "0038_own_wakes")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameField("heldanswer", "shown", "version"),
                migrations.RenameField("heldanswer", "deed", "action"),
                migrations.RenameField("heldanswer", "words", "outcome"),
                migrations.RenameField("heldanswer", "said", "form_values"),
                migrations.AlterField(
                    "heldanswer",
                    "version",
                    models.PositiveIntegerField(
                        db_column="shown", help_text="The version of the item that the person saw."
                    ),
                ),
                migrations.AlterField(
                    "heldanswer", "action", models.CharField(db_column="deed", max_length=20)
                ),
                migrations.AlterField(
                    "heldanswer",
                    "outcome",
                    models.CharField(
                        db_column="words", help_text="The name of the action once it is done.", max_length=60
                    ),
                ),
                migrations.AlterField(
                    "heldanswer",
                    "form_values",
                    models.JSONField(
                        db_column="said", default=dict, help_text="Notes, chosen option and result."
                    ),
                ),
            ]
        )
    ]
