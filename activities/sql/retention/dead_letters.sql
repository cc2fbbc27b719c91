-- Dead letters that people have dealt with long ago, or were told of long ago and left; while they are asked, a letter stays.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM activities_deadletter r
WHERE r.tenant_id = %(tenant)s AND r.created_at < %(before)s AND r.handled_at < %(before)s
  AND (r.closed_at IS NULL OR r.closed_at < %(before)s)
  AND NOT EXISTS (SELECT FROM activities_activity e
                  WHERE e.tenant_id = r.tenant_id AND e.id = r.escalation_id AND e.finished_at IS NULL)
ORDER BY r.created_at
