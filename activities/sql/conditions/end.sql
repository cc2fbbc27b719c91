-- Notes that a condition is over.
-- Parameters  name
-- Returns     id, kind, over, facts, tenants; none when somebody else has noted it
DELETE FROM activities_condition WHERE name = %(name)s RETURNING id, kind, over, facts, tenants
