-- Reads the number of all submissions that created nothing because an equal activity was live, by role.
-- Returns     agent_role (empty: people's work), count
SELECT agent_role, sum(count)::bigint AS count FROM activities_repeatedsubmissions GROUP BY agent_role ORDER BY agent_role
