"""Secrets of their own for tenants' agents, beside those derived from the installation's keys."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agents", "0007_backlog"),
    ]

    operations = [
        migrations.AddField(
            model_name="agentconfig",
            name="signing_sealed",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="The encrypted signing secrets, newest first. Empty: secrets that are derived from the installation's keys.",
            ),
        ),
    ]
