-- Selects old firings of skipped times without an execution. Other firings are deleted with their executions.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM pipelines_firing r
WHERE r.tenant_id = %(tenant)s AND r.state = 'skipped' AND r.at < %(before)s AND coalesce(r.last_at, r.nominal_at) < %(before)s
  AND NOT EXISTS (SELECT FROM pipelines_scheduleexecution e
                  WHERE e.tenant_id = r.tenant_id AND e.schedule_id = r.schedule_id AND e.nominal_at = r.nominal_at)
ORDER BY r.at
