-- Adds one to a counter.
-- Parameters  name, role, status, le
-- Returns     nothing
INSERT INTO activities_counter AS kept (name, role, status, le, count, total) VALUES (%(name)s, %(role)s, %(status)s, %(le)s, 1, 0)
ON CONFLICT (name, role, status, le) DO UPDATE SET count = kept.count + 1
