-- Work that was turned away, dropped or given up, ever since the installation began.
-- Returns     agent_role, reason, count
SELECT agent_role, reason, sum(count)::bigint AS count FROM activities_turnedaway GROUP BY agent_role, reason ORDER BY agent_role, reason
