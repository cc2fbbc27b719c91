"""The function that numbers audit entries, which now begins no chain for an off-boarded tenant."""

from importlib import import_module

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0005_events")]

    operations = [
        migrations.RunSQL([import_module("tenants.migrations.0004_functions").NUMBERING]),
    ]
