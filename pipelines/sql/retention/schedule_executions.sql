-- Executions that are over and none of whose jobs goes on. Jobs go with them.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM pipelines_scheduleexecution r
WHERE r.tenant_id = %(tenant)s AND r.finished_at < %(before)s
  AND NOT EXISTS (SELECT FROM pipelines_schedulejob j WHERE j.execution_id = r.id AND j.state IN ('waiting', 'enqueued'))
ORDER BY r.started_at
