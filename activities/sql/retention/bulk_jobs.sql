-- Bulk jobs that ended long ago.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM activities_bulkjob r WHERE r.tenant_id = %(tenant)s AND r.finished_at < %(before)s ORDER BY r.finished_at
