-- Locks those of these activities that have still ended. They may have changed since they were selected.
-- Parameters  tenant, members, before: the cutoff; ended: statuses of ended activities
-- Returns     id of each locked activity; activities that another transaction has locked are skipped
SELECT id FROM activities_activity
WHERE tenant_id = %(tenant)s AND id = ANY(%(members)s) AND status = ANY(%(ended)s) AND finished_at < %(before)s
ORDER BY id FOR UPDATE SKIP LOCKED
