-- I32  Nothing due is left waiting in schedules: times, jobs to create, ends to report.
-- Parameters  patience: seconds that it may wait
-- Returns     id of each schedule or execution that violates this
SELECT s.id FROM pipelines_schedule s JOIN tenants_tenant t ON t.id = s.tenant_id AND t.is_active AND NOT t.paused
WHERE s.enabled AND s.next_run_at < clock_timestamp() - %(patience)s * interval '1 second'
  AND NOT EXISTS (SELECT FROM tenants_pause p WHERE p.tenant_id = s.tenant_id AND p.kind = 'schedule' AND p.subject = s.id::text)
  AND NOT EXISTS (SELECT FROM agents_platformconfig WHERE key = 'scheduler' AND value -> 'enabled' = 'false'::jsonb)
UNION ALL
-- Another process takes over an expansion after a minute without a sign of life.
SELECT e.id FROM pipelines_scheduleexecution e
WHERE e.finished_at IS NULL AND e.status = 'running' AND e.expanded_at IS NULL
  AND coalesce(e.touched_at + interval '1 minute', e.started_at) < clock_timestamp() - %(patience)s * interval '1 second'
UNION ALL
SELECT e.id FROM pipelines_scheduleexecution e
WHERE e.finished_at IS NULL AND e.status IN ('running', 'cancelled')
  AND e.expanded_at < clock_timestamp() - %(patience)s * interval '1 second'
  AND NOT EXISTS (
    SELECT FROM pipelines_schedulejob j
    WHERE j.execution_id = e.id AND (j.ended_at >= clock_timestamp() - %(patience)s * interval '1 second'
        -- A job that waits has an error if a backlog had no room for it. There is room if no work of its tenant has waited lately.
        OR e.status = 'running' AND (j.state = 'enqueued' OR j.state = 'waiting' AND j.error IS NOT NULL AND (
            EXISTS (SELECT FROM activities_activity a
                    WHERE a.tenant_id = e.tenant_id AND a.status = 'created' AND a.assignee_type = 'agent')
            OR EXISTS (SELECT FROM activities_activityevent v
                       WHERE v.tenant_id = e.tenant_id AND v.at >= clock_timestamp() - %(patience)s * interval '1 second')))))
UNION ALL
SELECT e.id FROM pipelines_scheduleexecution e
WHERE e.finished_at IS NULL AND e.status = 'queued' AND e.started_at < clock_timestamp() - %(patience)s * interval '1 second'
  AND NOT EXISTS (SELECT FROM pipelines_scheduleexecution b WHERE b.schedule_id = e.schedule_id AND b.status = 'running')
  AND NOT EXISTS (
    SELECT FROM pipelines_scheduleexecution b
    WHERE b.schedule_id = e.schedule_id AND b.finished_at >= clock_timestamp() - %(patience)s * interval '1 second')
