-- Selects executions that ended before the cutoff and have no unfinished jobs. Their jobs are deleted with them.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM pipelines_scheduleexecution r
WHERE r.tenant_id = %(tenant)s AND r.finished_at < %(before)s
  AND NOT EXISTS (SELECT FROM pipelines_schedulejob j WHERE j.execution_id = r.id AND j.state IN ('waiting', 'enqueued'))
ORDER BY r.started_at
