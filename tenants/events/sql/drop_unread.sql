-- Drops the oldest fresh events of a tenant as if they had been numbered and were too old by now, so that whoever has stopped reading before
-- them is told that they are gone. The row of the tenant's log is locked by this transaction.
-- Parameters  tenant; before: a time; limit: of fresh rows looked at
-- Returns     how many fresh rows were dropped
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
), told AS (
    -- Of activities that are deleted there is nothing to miss.
    SELECT FROM dropped JOIN oldest USING (id) WHERE oldest.at IS NOT NULL
), counted AS (
    UPDATE tenants_eventlog SET last_number = last_number + (SELECT count(*) FROM told)
    WHERE tenant_id = %(tenant)s AND EXISTS (SELECT FROM told)
), earlier AS (
    DELETE FROM tenants_event WHERE tenant_id = %(tenant)s AND EXISTS (SELECT FROM told)
)
SELECT count(*) AS dropped FROM dropped
