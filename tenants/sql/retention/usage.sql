-- Selects ledger entries that no budget counts any more and whose run was deleted. The function that deletes them has the same conditions.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM tenants_usageentry r
WHERE r.tenant_id = %(tenant)s AND r.day < (%(before)s AT TIME ZONE 'UTC')::date
  AND r.day < (SELECT coalesce(min(b.period_start), 'infinity') FROM tenants_budget b
               WHERE b.tenant_id = %(tenant)s AND b.deleted_at IS NULL)
  AND NOT EXISTS (SELECT FROM activities_activityrun run WHERE run.tenant_id = r.tenant_id AND run.id = r.run_id)
ORDER BY r.day
