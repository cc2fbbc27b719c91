-- Selects old tool calls that still have arguments and whose activity ended before the cutoff. The calls and their effects are kept.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_toolcall r
JOIN activities_activity a ON a.tenant_id = r.tenant_id AND a.id = r.activity_id
WHERE r.tenant_id = %(tenant)s AND r.at < %(before)s AND a.finished_at < %(before)s AND r.arguments <> '{}'::jsonb
ORDER BY r.at
