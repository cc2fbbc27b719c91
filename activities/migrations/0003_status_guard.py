from django.db import migrations

from activities import states


class Migration(migrations.Migration):
    """The triggers that refuse undeclared changes of status, and keep what indexes know of it."""

    replaces = [("activities", "0035_a_claim_changes_no_index")]  # the last of those that it stands for
    dependencies = [("activities", "0002_isolation")]

    operations = [migrations.RunSQL(states.install_status_guard())]
