from django.db import migrations

from tenants.row_security import IsolateTenant


class Migration(migrations.Migration):
    dependencies = [("agents", "0001_tables")]

    operations = [
        IsolateTenant("agents_agentconfig"),
        IsolateTenant("agents_agentsession"),
        IsolateTenant("agents_skill"),
    ]
