-- Drops expired events of a tenant that were never numbered. They are counted as numbered events, and all earlier events are deleted, so
-- that readers that have not read them get the error that these events are gone. The caller's transaction must hold the lock of the
-- tenant's log.
-- Parameters  tenant; before: a time; limit: how many of the oldest fresh rows to check
-- Returns     dropped: number of deleted fresh rows
WITH oldest AS (
    SELECT f.id, coalesce(f.at, e.at) AS at
    FROM (SELECT * FROM tenants_freshevent WHERE tenant_id = %(tenant)s ORDER BY tenant_id, id LIMIT %(limit)s) f
    LEFT JOIN LATERAL (
        SELECT at FROM activities_activityevent WHERE activity_id = f.activities[1] AND seq = f.seqs[1] OFFSET 0
    ) e ON true
), dropped AS (
    DELETE FROM tenants_freshevent
    WHERE tenant_id = %(tenant)s AND id = ANY(ARRAY(SELECT id FROM oldest WHERE coalesce(at, '-infinity') < %(before)s))
    RETURNING id
), unread AS (
    -- Events of deleted activities are not counted.
    SELECT FROM dropped JOIN oldest USING (id) WHERE oldest.at IS NOT NULL
), counted AS (
    UPDATE tenants_eventlog SET last_number = last_number + (SELECT count(*) FROM unread)
    WHERE tenant_id = %(tenant)s AND EXISTS (SELECT FROM unread)
), earlier AS (
    DELETE FROM tenants_event WHERE tenant_id = %(tenant)s AND EXISTS (SELECT FROM unread)
)
SELECT count(*) AS dropped FROM dropped
