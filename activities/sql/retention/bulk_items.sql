-- Selects the items of bulk jobs that ended before the cutoff.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_bulkitem r JOIN activities_bulkjob j ON j.tenant_id = r.tenant_id AND j.id = r.job_id
WHERE r.tenant_id = %(tenant)s AND j.finished_at < %(before)s
ORDER BY r.job_id, r.id
