import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    """Dead letters name the work with which a planner was woken; digests have an hour and a day."""

    dependencies = [("activities", "0027_version_of_workers")]

    operations = [
        migrations.AddField(
            model_name="deadletter",
            name="planning_id",
            field=models.UUIDField(help_text="The activity that woke a planner because of it.", null=True),
        ),
        migrations.AlterField(
            model_name="notificationchannel",
            name="digest",
            field=models.CharField(
                choices=[("off", "Off"), ("daily", "Daily"), ("weekly", "Weekly")],
                db_default="off",
                default="off",
                help_text="For email: a daily or weekly summary.",
                max_length=6,
            ),
        ),
        migrations.AddField(
            model_name="notificationchannel",
            name="digest_hour",
            field=models.PositiveSmallIntegerField(
                blank=True,
                help_text="0 to 23, in the tenant's time zone. If empty, the platform's setting, usually 7 for daily and 9 for weekly digests.",
                null=True,
                validators=[django.core.validators.MaxValueValidator(23)],
            ),
        ),
        migrations.AddField(
            model_name="notificationchannel",
            name="digest_day",
            field=models.CharField(
                blank=True,
                choices=[
                    ("monday", "Monday"),
                    ("tuesday", "Tuesday"),
                    ("wednesday", "Wednesday"),
                    ("thursday", "Thursday"),
                    ("friday", "Friday"),
                    ("saturday", "Saturday"),
                    ("sunday", "Sunday"),
                ],
                db_default="",
                default="",
                help_text="For weekly digests. If empty, Monday.",
                max_length=9,
            ),
        ),
    ]
