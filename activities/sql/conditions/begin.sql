-- Records that a condition has begun.
-- Parameters  name, kind, over, facts (JSON), tenants (JSON)
-- Returns     id; nothing if it is recorded already. If two processes call it at once, the second waits for the first and gets nothing.
INSERT INTO activities_condition (name, kind, over, facts, tenants, since)
VALUES (%(name)s, %(kind)s, %(over)s, %(facts)s, %(tenants)s, clock_timestamp())
ON CONFLICT (name) DO NOTHING
RETURNING id
