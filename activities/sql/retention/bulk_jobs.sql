-- Selects bulk jobs that ended before the cutoff.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_bulkjob r WHERE r.tenant_id = %(tenant)s AND r.finished_at < %(before)s ORDER BY r.finished_at
