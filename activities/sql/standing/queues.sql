-- Counts work that waits for a worker, by role and priority. Reads only waiting work, by index.
-- Returns     agent_role, priority, waiting, delayed (not due yet), oldest_seconds (null if nothing is due)
-- A first run waits from when it was due. A later one waits from the move that made it claimable again, or from the end
-- of the delay that was set then, or from a date that was set since. "Run now" ends the delay. Other changes while it waits do not count.
SELECT a.agent_role, a.priority,
       count(*) FILTER (WHERE w.due) AS waiting,
       count(*) FILTER (WHERE NOT w.due) AS delayed,
       extract(epoch FROM clock_timestamp() - min(s.since) FILTER (WHERE w.due))::float AS oldest_seconds
FROM activities_activity a
JOIN (
    SELECT activity_id, bool_or(due_at IS NULL OR due_at <= now()) AS due, min(created_at) AS asked_at
    FROM activities_wake WHERE state = 'pending' GROUP BY activity_id
) w ON w.activity_id = a.id
CROSS JOIN LATERAL (SELECT CASE WHEN a.fence = 0 THEN greatest(w.asked_at, a.not_before) ELSE (
    SELECT greatest(e.at, least((e.detail ->> 'due_at')::timestamptz, a.run_now_at), a.not_before)
    FROM activities_activityevent e WHERE e.activity_id = a.id AND e.source IS DISTINCT FROM e.target ORDER BY e.seq DESC LIMIT 1) END AS since) s
WHERE a.status = 'created' AND a.indexed_status = 'open' AND a.assignee_type = 'agent'
GROUP BY a.agent_role, a.priority
