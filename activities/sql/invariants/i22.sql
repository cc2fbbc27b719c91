-- I22  Accepted outputs can be read.
-- Selects the outputs; the caller looks up those in MongoDB that are not in the spool.
-- Parameters  limit: how many outputs to check, newest first
-- Returns     id of the activity, tenant_id, output_ref and spooled_for (the tenant of its row in the spool, null if there is none)
SELECT a.id, a.tenant_id, a.output_ref, s.tenant_id AS spooled_for
FROM (
    SELECT id, tenant_id, output_ref FROM activities_activity
    WHERE output_ref IS NOT NULL ORDER BY id DESC LIMIT %(limit)s
) a LEFT JOIN activities_outputspool s ON s.id = a.output_ref
