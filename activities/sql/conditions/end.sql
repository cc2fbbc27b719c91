-- Deletes the record of a condition that is over.
-- Parameters  name
-- Returns     id, kind, over, facts, tenants; nothing if another process has deleted it already
DELETE FROM activities_condition WHERE name = %(name)s RETURNING id, kind, over, facts, tenants
