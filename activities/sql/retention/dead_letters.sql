-- Selects dead letters about which people were notified before the cutoff, and which were closed before it or are still open.
-- A dead letter is kept while its escalation, the question to people about it, is unfinished.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_deadletter r
WHERE r.tenant_id = %(tenant)s AND r.created_at < %(before)s AND r.handled_at < %(before)s
  AND (r.closed_at IS NULL OR r.closed_at < %(before)s)
  AND NOT EXISTS (SELECT FROM activities_activity e
                  WHERE e.tenant_id = r.tenant_id AND e.id = r.escalation_id AND e.finished_at IS NULL)
ORDER BY r.created_at
