-- Claims the delivery of a webhook that has waited longest, if its lane has room. The webhook is locked by this transaction.
-- Parameters  endpoint; lane: most attempts under way; lease: seconds until a claim that says nothing is given up; hanging: seconds
--             after which an attempt under way keeps further ones from the receiver
-- Returns     the delivery, its webhook's address and secrets, its event (nulls: a test, or no longer kept); nothing when none is due
-- Guarantee   no more than `lane` claims of a webhook at once, one if its last attempt failed or one of them hangs.
WITH busy AS (
    SELECT count(*) AS attempts, coalesce(bool_or(next_attempt_at < now() + (%(lease)s - %(hanging)s) * interval '1 second'), false) AS hangs
    FROM tenants_webhookdelivery
    WHERE endpoint_id = %(endpoint)s AND state = 'sending' AND next_attempt_at > now()
), endpoint AS (
    SELECT id, url, secret_sealed, previous_until, failures FROM tenants_webhookendpoint WHERE id = %(endpoint)s
), due AS (
    SELECT d.id FROM tenants_webhookdelivery d, busy, endpoint
    WHERE d.endpoint_id = %(endpoint)s AND d.state IN ('pending', 'sending') AND d.next_attempt_at <= now()
      AND busy.attempts < CASE WHEN endpoint.failures > 0 OR busy.hangs THEN 1 ELSE %(lane)s END
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
