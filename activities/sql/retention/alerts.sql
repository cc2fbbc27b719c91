-- Selects old alerts without unfinished deliveries, unless they are about an unfinished activity. Their deliveries are deleted with them.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_alert r
WHERE r.tenant_id = %(tenant)s AND r.created_at < %(before)s
  AND NOT EXISTS (SELECT FROM activities_alertdelivery d WHERE d.alert_id = r.id AND d.state IN ('pending', 'sending'))
  AND NOT EXISTS (SELECT FROM activities_activity a
                  WHERE a.tenant_id = r.tenant_id AND a.id = r.activity_id AND a.finished_at IS NULL)
ORDER BY r.created_at
