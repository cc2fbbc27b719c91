-- Finds why failed activities ran last, or were to run next: the wakes of their last run, and those that their failure consumed.
-- Parameters  tenant, activities
-- Returns     activity_id, reason, payload (as text), fingerprint; distinct, oldest first
-- A run may have a wake of its own, which has no row. If the agent ended the last run with a tool, that run has used up its wakes, and only
-- undelivered later ones are returned. An activity without any such wake gets its newest wake.
WITH asked AS (
    SELECT a.id AS activity_id, run.id AS run_id, run.status, run.started_at, run.wake_reason, run.own_wake
    FROM unnest(%(activities)s::uuid[]) AS a(id)
    LEFT JOIN LATERAL (
        SELECT r.id, r.status, r.started_at, r.wake_reason, r.own_wake FROM activities_activityrun r
        WHERE r.tenant_id = %(tenant)s AND r.activity_id = a.id ORDER BY r.fence DESC LIMIT 1
    ) run ON true
), last_wakes AS (
    SELECT w.id, w.activity_id, w.reason, w.payload, w.fingerprint
    FROM asked JOIN activities_wake w ON w.tenant_id = %(tenant)s AND w.activity_id = asked.activity_id AND w.state IN ('taken', 'consumed')
    WHERE (w.run_id = asked.run_id AND asked.status <> 'completed')
       OR (w.run_id IS NULL AND (asked.run_id IS NULL OR w.created_at >= asked.started_at))
    UNION ALL
    SELECT activity_id, activity_id, wake_reason, own_wake -> 'payload', ''
    FROM asked WHERE own_wake IS NOT NULL AND status <> 'completed'
), newest AS (
    SELECT w.id, w.activity_id, w.reason, w.payload, w.fingerprint
    FROM asked CROSS JOIN LATERAL (
        SELECT * FROM (SELECT * FROM activities_wake WHERE tenant_id = %(tenant)s AND activity_id = asked.activity_id OFFSET 0) o
        ORDER BY o.id DESC LIMIT 1
    ) w
    WHERE NOT EXISTS (SELECT FROM last_wakes WHERE last_wakes.activity_id = asked.activity_id)
), found AS (
    SELECT DISTINCT ON (activity_id, reason, fingerprint) * FROM (SELECT * FROM last_wakes UNION ALL SELECT * FROM newest) w
    ORDER BY activity_id, reason, fingerprint, id
)
SELECT activity_id, reason, payload::text AS payload, fingerprint FROM found ORDER BY id
