-- Selects old answers that were stored for idempotency.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM tenants_idempotentrequest r WHERE r.tenant_id = %(tenant)s AND r.created_at < %(before)s ORDER BY r.created_at
