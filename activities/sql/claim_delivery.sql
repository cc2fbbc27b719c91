-- Claims the oldest due delivery of a tenant whose channel is not in use by another claim. This transaction holds the lock of
-- `lock_deliveries.sql`.
-- Parameters  tenant, kind; quiet, patience: seconds after which an unfinished claim frees its channel, and after which it is
--             abandoned; tenant_lane: maximum of simultaneous claims of the tenant
-- Returns     the delivery, its alert, its tenant's slug and its channel's sealed target (null: no such channel is enabled);
--             nothing if none is due.
-- Guarantee   a delivery has one claim at a time; simultaneous claims take different deliveries.
WITH busy AS (
    SELECT channel_id, tenant_id FROM activities_alertdelivery
    WHERE channel_kind = %(kind)s AND state = 'sending' AND claimed_at > now() - %(quiet)s * interval '1 second'
), due AS (
    SELECT id FROM activities_alertdelivery delivery
    WHERE tenant_id = %(tenant)s AND channel_kind = %(kind)s AND state = 'pending' AND next_attempt_at <= now()
      -- So a slow receiver blocks only one sender, and gets its alerts in order.
      AND NOT EXISTS (SELECT FROM busy WHERE busy.channel_id IS NOT DISTINCT FROM delivery.channel_id)
      AND (SELECT count(*) FROM busy WHERE busy.tenant_id = %(tenant)s) < %(tenant_lane)s
    ORDER BY next_attempt_at, id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE activities_alertdelivery delivery
    SET state = 'sending', attempts = attempts + 1, claimed_at = now(),
        next_attempt_at = now() + %(patience)s * interval '1 second'
    FROM due
    WHERE delivery.id = due.id
    RETURNING delivery.*
)
SELECT claimed.id, claimed.tenant_id, claimed.attempts AS attempt, claimed.channel_kind, claimed.channel_id,
       channel.target_sealed, tenant.slug AS tenant, alert.id AS alert_id, alert.kind, alert.severity, alert.title, alert.body,
       alert.activity_id, alert.facts, alert.created_at
FROM claimed
JOIN activities_alert alert ON alert.tenant_id = claimed.tenant_id AND alert.id = claimed.alert_id
JOIN tenants_tenant tenant ON tenant.id = claimed.tenant_id
LEFT JOIN activities_notificationchannel channel
    ON channel.tenant_id = claimed.tenant_id AND channel.id = claimed.channel_id AND channel.enabled
