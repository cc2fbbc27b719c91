-- I14  Every terminal failure has one dead letter, and people are asked about it once.
-- The last dead letter of failed work was not replayed, and other work has no open one. If people were notified about an open dead letter,
-- it has an escalation, which belongs to no other. People were notified about each dead letter with an escalation. An open escalation about
-- a dead letter belongs to an open one. A dead letter has at most one alert, and only if it has an escalation.
-- The oldest dead letters of work may be gone, because retention deletes them on the first day at the earliest, before their work.
-- Returns     id of each activity that violates this
-- Plan        NOT IN instead of NOT EXISTS: it is hashed however few rows the planner expects.
WITH letter AS (
    SELECT activity_id, count(*) AS times, count(*) FILTER (WHERE state = 'open') AS open, min(created_at) AS first,
           (array_agg(state ORDER BY created_at DESC, id DESC))[1] AS last
    FROM activities_deadletter WHERE activity_id IS NOT NULL GROUP BY activity_id
), failure AS (
    SELECT e.activity_id, count(*) AS times, count(*) FILTER (WHERE e.at > l.first) AS later,
           bool_or(e.at > now() - interval '1 day') AS recent
    FROM activities_activityevent e LEFT JOIN letter l USING (activity_id) WHERE e.verb IN ('fail', 'trip') GROUP BY e.activity_id
)
SELECT activity_id AS id FROM failure FULL JOIN letter USING (activity_id)
WHERE CASE WHEN letter.times IS NULL THEN failure.recent
           ELSE failure.times IS NULL OR failure.times < letter.times OR failure.later <> letter.times - 1 END
UNION
SELECT a.id FROM activities_activity a JOIN letter l ON l.activity_id = a.id
WHERE a.status IN ('failed', 'needs_review') AND l.last = 'replayed'
UNION
SELECT a.id FROM letter l JOIN activities_activity a ON a.id = l.activity_id
WHERE l.open > 0 AND a.status NOT IN ('failed', 'needs_review')
UNION
SELECT d.activity_id FROM activities_deadletter d LEFT JOIN activities_activity e ON e.id = d.escalation_id
WHERE d.handled_at IS NOT NULL AND d.state = 'open' AND d.escalation_id IS NULL AND d.activity_id IS NOT NULL
   OR d.escalation_id IS NOT NULL AND (d.handled_at IS NULL OR e.link_kind IS DISTINCT FROM 'escalation' OR e.parent_id <> d.activity_id)
UNION
SELECT min(activity_id::text)::uuid FROM activities_deadletter WHERE escalation_id IS NOT NULL
GROUP BY escalation_id HAVING count(*) > 1
UNION
SELECT e.parent_id FROM activities_activity e
WHERE e.link_kind = 'escalation' AND e.status IN ('created', 'in_progress') AND e.metadata ? 'dead_letter' AND e.id NOT IN (
    SELECT escalation_id FROM activities_deadletter WHERE state = 'open' AND escalation_id IS NOT NULL)
UNION
SELECT d.activity_id FROM activities_alert t
JOIN activities_deadletter d ON d.tenant_id = t.tenant_id AND 'dead-letter:' || d.id = t.dedup_key
WHERE d.activity_id IS NOT NULL
GROUP BY d.id, d.activity_id, d.escalation_id HAVING count(*) > 1 OR d.escalation_id IS NULL
