-- Stores up to when the times of schedules have been processed, and when they are due next.
-- Parameters  tenant, now, ids (array of uuid), until, next (arrays of timestamptz; next is null if no time follows),
--             fired (array of boolean: whether an execution was created)
-- Returns     id of each changed schedule
UPDATE pipelines_schedule s
SET looked_until = w.until, next_run_at = w.next, last_run_at = CASE WHEN w.fired THEN %(now)s ELSE s.last_run_at END
FROM unnest(%(ids)s::uuid[], %(until)s::timestamptz[], %(next)s::timestamptz[], %(fired)s::boolean[])
    AS w(id, until, next, fired)
WHERE s.tenant_id = %(tenant)s AND s.id = w.id
RETURNING s.id
