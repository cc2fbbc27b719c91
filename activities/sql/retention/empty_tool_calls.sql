-- Empties the arguments of old tool calls whose activity ended before the cutoff.
-- Parameters  tenant, before: the cutoff; most: the maximum number of calls
-- Returns     id of each call
UPDATE activities_toolcall SET arguments = '{}'::jsonb
WHERE tenant_id = %(tenant)s AND id IN (
    SELECT r.id FROM activities_toolcall r
    JOIN activities_activity a ON a.tenant_id = r.tenant_id AND a.id = r.activity_id
    WHERE r.tenant_id = %(tenant)s AND r.at < %(before)s AND a.finished_at < %(before)s AND r.arguments <> '{}'::jsonb
    ORDER BY r.at LIMIT %(most)s FOR UPDATE OF r SKIP LOCKED)
RETURNING id
