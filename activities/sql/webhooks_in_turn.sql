-- The webhooks of all tenants that have something due, the one that has waited longest first.
-- Parameters  troubled: those whose last attempt failed, or the others
-- Returns     id
SELECT e.id
FROM tenants_webhookendpoint e
CROSS JOIN LATERAL (
    SELECT d.next_attempt_at FROM tenants_webhookdelivery d
    WHERE d.endpoint_id = e.id AND d.state IN ('pending', 'sending') AND d.next_attempt_at <= now()
    ORDER BY d.next_attempt_at LIMIT 1
) due
WHERE e.enabled AND (e.paused_until IS NULL OR e.paused_until <= now()) AND (e.failures > 0) = %(troubled)s
ORDER BY due.next_attempt_at
LIMIT 500
