from django.db import migrations

# What agents have asked with a default outcome is left to people: at the due time the item becomes urgent, and stays open.
LEAVE_TO_PEOPLE = """
SET LOCAL ROLE orchestrator_system;
UPDATE activities_activity a SET decision_rules = a.decision_rules - 'on_timeout', version = a.version + 1
WHERE a.assignee_type = 'human' AND a.status IN ('created', 'in_progress') AND a.decision_rules ->> 'on_timeout' IN ('approve', 'reject')
  AND (a.link_kind = 'review' OR (a.link_kind = 'approval' AND EXISTS (
    SELECT FROM activities_approval p WHERE p.tenant_id = a.tenant_id AND p.id = a.id AND p.requested_identity LIKE 'run:%')));
RESET ROLE;
"""


class Migration(migrations.Migration):
    dependencies = [("activities", "0018_leader_lease")]

    operations = [migrations.RunSQL(LEAVE_TO_PEOPLE, migrations.RunSQL.noop)]
