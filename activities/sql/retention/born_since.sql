-- Selects the parents, among these activities, of children that are not among them: they were created after the trees were read.
-- Parameters  tenant, members
-- Returns     parent_id of each such child
SELECT c.parent_id FROM activities_activity c
WHERE c.tenant_id = %(tenant)s AND c.parent_id = ANY(%(members)s) AND c.id <> ALL(%(members)s)
