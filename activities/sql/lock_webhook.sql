-- Locks a webhook, and its tenant against other claims of webhooks, if the webhook may be called and no other transaction has these locks.
-- Parameters  endpoint
-- Returns     id, or nothing
SELECT id FROM tenants_webhookendpoint
WHERE id = %(endpoint)s AND enabled AND (paused_until IS NULL OR paused_until <= now())
  AND pg_try_advisory_xact_lock(hashtextextended('webhooks:' || tenant_id, 0))
FOR NO KEY UPDATE SKIP LOCKED
