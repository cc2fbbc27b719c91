-- Reads how often work was refused, dropped or expired, by role and reason.
-- Returns     agent_role, reason, count
SELECT agent_role, reason, sum(count)::bigint AS count FROM activities_turnedaway GROUP BY agent_role, reason ORDER BY agent_role, reason
