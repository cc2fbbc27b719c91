-- Counts submissions that created nothing because an equal activity was live.
-- Parameters  tenant, and arrays of equal length, sorted by role: ids, roles, counts
-- Returns     nothing
-- Guarantee   rows are locked in the order of their roles, so that two simultaneous bulk submissions cannot deadlock.
INSERT INTO activities_repeatedsubmissions AS kept (id, tenant_id, agent_role, count)
SELECT r.id, %(tenant)s, r.role, r.count
FROM unnest(%(ids)s::uuid[], %(roles)s::text[], %(counts)s::bigint[]) AS r(id, role, count)
ORDER BY r.role
ON CONFLICT (tenant_id, agent_role) DO UPDATE SET count = kept.count + excluded.count
