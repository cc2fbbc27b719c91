-- Selects the webhooks of all tenants with due deliveries, tenants in turn: the tenant with the fewest active calls comes first.
-- Parameters  troubled: true for webhooks whose last attempt failed, false for the others; tenant_lane, lane: maximum of simultaneous
--             calls of a tenant, of a webhook
-- Returns     id
-- Guarantee   skips tenants with the maximum of active calls. Of each tenant it returns no more webhooks than it may call. Webhooks without
--             an active call come first, so that receivers that hang do not block the tenant's other webhooks.
WITH under_way AS (
    SELECT tenant_id, endpoint_id, count(*) AS calls FROM tenants_webhookdelivery
    WHERE state = 'sending' AND next_attempt_at > now() GROUP BY tenant_id, endpoint_id
), busy AS (
    SELECT tenant_id, sum(calls) AS calls FROM under_way GROUP BY tenant_id
), due AS (
    SELECT e.id, e.tenant_id, first.next_attempt_at, coalesce(under_way.calls, 0) AS calls
    FROM tenants_webhookendpoint e
    CROSS JOIN LATERAL (
        SELECT d.next_attempt_at FROM tenants_webhookdelivery d
        WHERE d.endpoint_id = e.id AND d.state IN ('pending', 'sending') AND d.next_attempt_at <= now()
        ORDER BY d.next_attempt_at LIMIT 1
    ) first
    LEFT JOIN under_way ON under_way.endpoint_id = e.id
    WHERE e.enabled AND (e.paused_until IS NULL OR e.paused_until <= now()) AND (e.failures > 0) = %(troubled)s
      AND coalesce(under_way.calls, 0) < %(lane)s
), turns AS (
    SELECT due.id, due.next_attempt_at, coalesce(busy.calls, 0) AS calls,
           row_number() OVER (PARTITION BY due.tenant_id ORDER BY due.calls, due.next_attempt_at, due.id) AS place
    FROM due LEFT JOIN busy ON busy.tenant_id = due.tenant_id
)
SELECT id FROM turns WHERE calls < %(tenant_lane)s AND place <= %(tenant_lane)s
ORDER BY calls + place, next_attempt_at
LIMIT 500
