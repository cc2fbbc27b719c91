-- Counts work that was refused, dropped or expired.
-- Parameters  tenant, reason, and arrays of equal length, sorted by role: ids, roles, counts
-- Returns     nothing
-- Guarantee   rows are locked in the order of their roles, so that two simultaneous calls cannot deadlock.
INSERT INTO activities_turnedaway AS kept (id, tenant_id, agent_role, reason, count)
SELECT r.id, %(tenant)s, r.role, %(reason)s, r.count
FROM unnest(%(ids)s::uuid[], %(roles)s::text[], %(counts)s::bigint[]) AS r(id, role, count)
ORDER BY r.role
ON CONFLICT (tenant_id, agent_role, reason) DO UPDATE SET count = kept.count + excluded.count
