from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("activities", "0011_wake_provenance")]

    operations = [
        migrations.AddField(
            model_name="notificationchannel",
            name="digest",
            field=models.CharField(
                choices=[("off", "Off"), ("daily", "Daily"), ("weekly", "Weekly")],
                db_default="off",
                default="off",
                help_text="For mail: a summary at seven in the tenant's time zone, each day or each Monday.",
                max_length=6,
            ),
        ),
        migrations.AddField(
            model_name="notificationchannel",
            name="digest_roles",
            field=models.JSONField(
                blank=True,
                db_default=[],
                default=list,
                help_text="The human roles whose waiting items the digest contains. If empty: all.",
            ),
        ),
        migrations.AddField(
            model_name="notificationchannel",
            name="digest_due_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddIndex(
            model_name="notificationchannel",
            index=models.Index(
                condition=models.Q(("digest_due_at__isnull", False)),
                fields=["digest_due_at"],
                name="digests_due",
            ),
        ),
    ]
