-- Locks a webhook for one claim, if it may be sent to and nobody else is claiming there at this moment.
-- Parameters  endpoint
-- Returns     id, or nothing
SELECT id FROM tenants_webhookendpoint
WHERE id = %(endpoint)s AND enabled AND (paused_until IS NULL OR paused_until <= now())
FOR NO KEY UPDATE SKIP LOCKED
