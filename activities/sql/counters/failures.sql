-- Adds a range of the history to the counts of consecutive failures of roles and schedules. The transaction has locked the mark of the
-- counters, so no other transaction writes these counts.
-- Parameters  after, until: ids of events; running: statuses; excused: codes of errors that do not count as failures of the agent
-- Returns     nothing
-- Plan        each event looks up its activity and its run by their keys; the table has only rows of roles and schedules that fail now.
WITH ended AS MATERIALIZED (
    SELECT e.id, a.tenant_id, a.agent_role, a.schedule_id, r.status = 'completed' AS good, left(coalesce(r.error ->> 'code', ''), 200) AS code
    FROM activities_activityevent e
    CROSS JOIN LATERAL (
        SELECT tenant_id, agent_role, schedule_id FROM activities_activity WHERE id = e.activity_id AND assignee_type = 'agent' OFFSET 0
    ) a
    CROSS JOIN LATERAL (
        SELECT o.status, o.error FROM activities_activityrun o
        WHERE o.activity_id = e.activity_id AND o.started_at <= e.at ORDER BY o.fence DESC LIMIT 1
    ) r
    WHERE e.id > %(after)s AND e.id <= %(until)s AND e.source = ANY(%(running)s) AND NOT e.target = ANY(%(running)s)
      AND (r.status = 'completed' OR r.status = 'failed' AND NOT coalesce(r.error ->> 'code', '') = ANY(%(excused)s))
), subjects AS (
    SELECT id, tenant_id, 'role' AS kind, agent_role AS subject, good, code FROM ended
    UNION ALL
    SELECT id, tenant_id, 'schedule', schedule_id::text, good, code FROM ended WHERE schedule_id IS NOT NULL
), latest AS (
    SELECT tenant_id, kind, subject, max(id) FILTER (WHERE good) AS succeeded FROM subjects GROUP BY tenant_id, kind, subject
), outcomes AS (
    SELECT l.tenant_id, l.kind, l.subject, l.succeeded IS NOT NULL AS succeeded,
           count(*) FILTER (WHERE NOT s.good AND s.id > coalesce(l.succeeded, 0)) AS failures,
           (array_agg(s.code ORDER BY s.id DESC) FILTER (WHERE NOT s.good))[1] AS code
    FROM latest l JOIN subjects s USING (tenant_id, kind, subject)
    GROUP BY l.tenant_id, l.kind, l.subject, l.succeeded
), over AS (
    DELETE FROM activities_failuresinarow k USING outcomes t
    WHERE k.tenant_id = t.tenant_id AND k.kind = t.kind AND k.subject = t.subject AND t.failures = 0 AND t.succeeded
)
INSERT INTO activities_failuresinarow AS kept (id, tenant_id, kind, subject, count, error_code, since)
SELECT gen_random_uuid(), t.tenant_id, t.kind, t.subject,
       t.failures + CASE WHEN t.succeeded THEN 0 ELSE coalesce(k.count, 0) END, t.code,
       CASE WHEN t.succeeded THEN clock_timestamp() ELSE coalesce(k.since, clock_timestamp()) END
FROM outcomes t
LEFT JOIN activities_failuresinarow k ON k.tenant_id = t.tenant_id AND k.kind = t.kind AND k.subject = t.subject
WHERE t.failures > 0
ON CONFLICT (tenant_id, kind, subject) DO UPDATE
SET count = excluded.count, error_code = excluded.error_code, since = excluded.since
