-- Locks those of these activities that are over, whatever has become of them since they were found.
-- Parameters  tenant, members, before;  ended: statuses that count as over
-- Returns     id of each that is ours until the end of the transaction; what another holds is left out
SELECT id FROM activities_activity
WHERE tenant_id = %(tenant)s AND id = ANY(%(members)s) AND status = ANY(%(ended)s) AND finished_at < %(before)s
ORDER BY id FOR UPDATE SKIP LOCKED
