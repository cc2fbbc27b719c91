-- Gives the oldest fresh events of a tenant their numbers, and makes a delivery for each webhook that wants them. The row of the
-- tenant's log is locked by this transaction.
-- Parameters  tenant; last: the last number given; limit
-- Returns     how many there were
-- Guarantee   an event gets one number, and at most one delivery per webhook. What has not committed yet is numbered later, higher.
WITH taken AS (
    DELETE FROM tenants_freshevent
    WHERE tenant_id = %(tenant)s AND id = ANY(ARRAY(SELECT id FROM tenants_freshevent WHERE tenant_id = %(tenant)s ORDER BY tenant_id, id LIMIT %(limit)s))
    RETURNING *
), numbered AS (
    INSERT INTO tenants_event (id, tenant_id, number, kind, at, activity_id, pipeline_run_id, data)
    SELECT id, tenant_id, %(last)s + row_number() OVER (ORDER BY id), kind, at, activity_id, pipeline_run_id, data FROM taken
    RETURNING number, kind
), counted AS (
    UPDATE tenants_eventlog SET last_number = %(last)s + (SELECT count(*) FROM taken) WHERE tenant_id = %(tenant)s
), webhook AS (
    -- Kept from being removed meanwhile; one that was removed a moment ago gets nothing.
    SELECT id, kinds FROM tenants_webhookendpoint WHERE tenant_id = %(tenant)s AND enabled ORDER BY id FOR KEY SHARE
), told AS (
    INSERT INTO tenants_webhookdelivery (id, tenant_id, endpoint_id, event_number, kind, state, next_attempt_at, created_at)
    SELECT gen_random_uuid(), %(tenant)s, w.id, n.number, n.kind, 'pending', clock_timestamp(), clock_timestamp()
    FROM numbered n JOIN webhook w ON w.kinds = '[]'::jsonb OR w.kinds ? n.kind
)
SELECT count(*) AS numbered FROM numbered
