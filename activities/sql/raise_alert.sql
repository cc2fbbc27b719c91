-- Creates an alert, unless one with the same key exists, and finds the channels that subscribe to it.
-- Parameters  id, tenant, kind, severity, title, body, activity_id, facts: the alert; dedup_key: may be null
-- Returns     channel_kind, channel_id, channel_name: a row per channel; one row of nulls if there is none; nothing if the alert existed.
WITH raised AS (
    INSERT INTO activities_alert
        (id, tenant_id, kind, severity, title, body, activity_id, facts, dedup_key, acknowledged_by, created_at)
    VALUES (%(id)s, %(tenant)s, %(kind)s, %(severity)s, %(title)s, %(body)s, %(activity_id)s, %(facts)s, %(dedup_key)s, '',
            clock_timestamp())
    ON CONFLICT (tenant_id, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
    RETURNING tenant_id, kind
)
SELECT channel.kind AS channel_kind, channel.id AS channel_id, channel.name AS channel_name
FROM raised
LEFT JOIN activities_notificationchannel channel
    ON channel.tenant_id = raised.tenant_id AND channel.enabled
    -- A channel without kinds gets all kinds except questions, of which there may be many. It gets those only if it names them.
    AND (channel.kinds = '[]'::jsonb AND raised.kind <> 'decision' OR channel.kinds ? raised.kind)
