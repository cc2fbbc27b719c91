-- Claims the oldest due delivery of a webhook, if its limits allow it. This transaction has locked the webhook.
-- Parameters  endpoint; lane, tenant_lane, troubled_lane: maximum of simultaneous attempts of the webhook, of its tenant, and of all
--             webhooks whose last attempt failed; lease: seconds after which an unfinished claim is abandoned; hanging: seconds after
--             which an attempt blocks further ones to the same receiver
-- Returns     the delivery, its webhook's address and secrets, its event (nulls for a test, or if it is no longer stored); nothing if none
--             is due
-- Guarantee   at most `lane` simultaneous claims of a webhook, or one if its last attempt failed or one of them hangs, and at most
--             `tenant_lane` of a tenant. Simultaneous claims may exceed `troubled_lane`.
WITH busy AS (
    SELECT count(*) AS attempts, coalesce(bool_or(next_attempt_at < now() + (%(lease)s - %(hanging)s) * interval '1 second'), false) AS hangs
    FROM tenants_webhookdelivery
    WHERE endpoint_id = %(endpoint)s AND state = 'sending' AND next_attempt_at > now()
), endpoint AS (
    SELECT id, tenant_id, url, secret_sealed, previous_until, failures FROM tenants_webhookendpoint WHERE id = %(endpoint)s
), of_tenant AS (
    SELECT count(*) AS attempts FROM tenants_webhookdelivery d, endpoint
    WHERE d.tenant_id = endpoint.tenant_id AND d.state = 'sending' AND d.next_attempt_at > now()
), troubled AS (
    SELECT count(*) AS attempts FROM tenants_webhookdelivery d JOIN tenants_webhookendpoint e ON e.id = d.endpoint_id
    WHERE d.state = 'sending' AND d.next_attempt_at > now() AND e.failures > 0
), due AS (
    SELECT d.id FROM tenants_webhookdelivery d, busy, endpoint, of_tenant, troubled
    WHERE d.endpoint_id = %(endpoint)s AND d.state IN ('pending', 'sending') AND d.next_attempt_at <= now()
      AND busy.attempts < CASE WHEN endpoint.failures > 0 OR busy.hangs THEN 1 ELSE %(lane)s END
      AND of_tenant.attempts < %(tenant_lane)s
      AND (endpoint.failures = 0 OR troubled.attempts < %(troubled_lane)s)
    ORDER BY d.next_attempt_at, d.id
    LIMIT 1
    FOR UPDATE OF d SKIP LOCKED
), claimed AS (
    UPDATE tenants_webhookdelivery d
    SET state = 'sending', attempts = d.attempts + 1, fence = d.fence + 1, next_attempt_at = now() + %(lease)s * interval '1 second'
    FROM due WHERE d.id = due.id
    RETURNING d.id, d.tenant_id, d.endpoint_id, d.event_number, d.kind, d.attempts, d.fence, d.created_at
)
SELECT claimed.*, endpoint.url, endpoint.secret_sealed, endpoint.previous_until, endpoint.failures,
       event.kind AS event_kind, event.at, event.activity_id, event.pipeline_run_id, event.data
FROM claimed
CROSS JOIN endpoint
LEFT JOIN tenants_event event ON event.tenant_id = claimed.tenant_id AND event.number = claimed.event_number
