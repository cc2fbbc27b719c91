-- Notes that steps start, each with its activity: the beginning of the statement that creates these (`submission.Beginning`). What waits for
-- the steps has until then to wait, unless something that it depends on has started before.
-- Parameters  tenant, run, steps (array of text), activities (array of uuid); waiting (array of text), seconds (array of float)
-- Returns     begun: step, round of each step that was pending
begun AS (
    UPDATE pipelines_steprun s SET status = 'active', activity_id = w.activity, reason = '', waits_until = NULL
    FROM unnest(%(steps)s::text[], %(activities)s::uuid[]) AS w(step, activity)
    WHERE s.tenant_id = %(tenant)s AND s.run_id = %(run)s AND s.step = w.step AND s.branch = 0 AND s.status = 'pending'
    RETURNING s.step, s.round
), waiting AS (
    UPDATE pipelines_steprun s SET waits_until = clock_timestamp() + make_interval(secs => w.seconds)
    FROM unnest(%(waiting)s::text[], %(seconds)s::float8[]) AS w(step, seconds)
    WHERE s.tenant_id = %(tenant)s AND s.run_id = %(run)s AND s.step = w.step AND s.branch = 0 AND s.status = 'pending'
      AND s.waits_until IS NULL
)
