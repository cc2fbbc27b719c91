-- I22  Every output that was accepted can be read: from the spool, or else from MongoDB.
-- Parameters  limit: how many outputs to look at, newest first
-- Returns     id of the activity, tenant_id, output_ref and spooled_for (the tenant of its spool row, null when it is not there)
SELECT a.id, a.tenant_id, a.output_ref, s.tenant_id AS spooled_for
FROM (
    SELECT id, tenant_id, output_ref FROM activities_activity
    WHERE output_ref IS NOT NULL ORDER BY id DESC LIMIT %(limit)s
) a LEFT JOIN activities_outputspool s ON s.id = a.output_ref
