import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """A tenant's settings for a role are found by their key, never among those of all tenants for the role."""

    dependencies = [("agents", "0008_signing_secrets")]

    operations = [
        migrations.AlterField(
            model_name="agentconfig",
            name="agent",
            field=models.ForeignKey(
                db_column="role",
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="agents.agent",
            ),
        ),
    ]
