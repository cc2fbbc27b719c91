-- Children of these activities that are not among them: made between finding and locking.
-- Parameters  tenant, members
-- Returns     parent_id of each
SELECT c.parent_id FROM activities_activity c
WHERE c.tenant_id = %(tenant)s AND c.parent_id = ANY(%(members)s) AND c.id <> ALL(%(members)s)
