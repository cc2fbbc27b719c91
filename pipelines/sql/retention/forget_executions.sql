-- Deletes ended executions with their jobs, and with the firings of their times, because a firing without its execution would be wrong.
-- Parameters  tenant, before: the cutoff; most: the maximum number of executions
-- Returns     id of each deleted execution
WITH old AS (
    SELECT r.id, r.schedule_id, r.nominal_at FROM pipelines_scheduleexecution r
    WHERE r.tenant_id = %(tenant)s AND r.finished_at < %(before)s
      AND NOT EXISTS (SELECT FROM pipelines_schedulejob j WHERE j.execution_id = r.id AND j.state IN ('waiting', 'enqueued'))
    ORDER BY r.started_at LIMIT %(most)s FOR UPDATE OF r SKIP LOCKED
), times AS (
    DELETE FROM pipelines_firing f USING old
    WHERE f.tenant_id = %(tenant)s AND f.schedule_id = old.schedule_id AND f.nominal_at = old.nominal_at
)
DELETE FROM pipelines_scheduleexecution e USING old WHERE e.tenant_id = %(tenant)s AND e.id = old.id RETURNING e.id
