-- Selects the sessions that ended before a given time, the oldest first.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM agents_agentsession r WHERE r.tenant_id = %(tenant)s AND r.ended_at < %(before)s ORDER BY r.ended_at
