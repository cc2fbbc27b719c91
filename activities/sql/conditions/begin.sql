-- Notes that a condition has begun.
-- Parameters  name, kind, over, facts (JSON), tenants (JSON)
-- Returns     id; none when it is on record already. Of two at once the second waits for the first and gets none.
INSERT INTO activities_condition (name, kind, over, facts, tenants, since)
VALUES (%(name)s, %(kind)s, %(over)s, %(facts)s, %(tenants)s, clock_timestamp())
ON CONFLICT (name) DO NOTHING
RETURNING id
