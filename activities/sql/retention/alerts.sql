-- Alerts that are old, are on their way to nobody, and are not about work that goes on. Deliveries go with them.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM activities_alert r
WHERE r.tenant_id = %(tenant)s AND r.created_at < %(before)s
  AND NOT EXISTS (SELECT FROM activities_alertdelivery d WHERE d.alert_id = r.id AND d.state IN ('pending', 'sending'))
  AND NOT EXISTS (SELECT FROM activities_activity a
                  WHERE a.tenant_id = r.tenant_id AND a.id = r.activity_id AND a.finished_at IS NULL)
ORDER BY r.created_at
