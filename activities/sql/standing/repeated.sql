-- Submissions that created nothing, since an equal activity was under way; ever since the installation began.
-- Returns     agent_role (empty: people's work), count
SELECT agent_role, sum(count)::bigint AS count FROM activities_repeatedsubmissions GROUP BY agent_role ORDER BY agent_role
