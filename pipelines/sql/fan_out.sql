-- Starts a step with one branch for each of its items, and creates the branches, each with its activity. Also starts the dependency time-outs
-- of the steps after it, like `activate_steps.sql`.
-- Parameters  tenant, run, step, activities (array of uuid, in the order of the items, at least one); waiting, seconds
-- Returns     round of the step if it was pending; else nothing, and nothing was changed
WITH whole AS (
    UPDATE pipelines_steprun s
    SET status = 'active', reason = '', waits_until = NULL, failed_branches = 0,
        branches = cardinality(%(activities)s::uuid[]), unsettled_branches = cardinality(%(activities)s::uuid[])
    WHERE s.tenant_id = %(tenant)s AND s.run_id = %(run)s AND s.step = %(step)s AND s.branch = 0 AND s.status = 'pending'
    RETURNING s.position, s.round
), made AS (
    INSERT INTO pipelines_steprun (tenant_id, run_id, step, branch, position, status, activity_id, round)
    SELECT %(tenant)s, %(run)s, %(step)s, w.branch, whole.position, 'active', w.activity, whole.round
    FROM whole, unnest(%(activities)s::uuid[]) WITH ORDINALITY AS w(activity, branch)
), waiting AS (
    UPDATE pipelines_steprun s SET waits_until = clock_timestamp() + make_interval(secs => w.seconds)
    FROM whole, unnest(%(waiting)s::text[], %(seconds)s::float8[]) AS w(step, seconds)
    WHERE s.tenant_id = %(tenant)s AND s.run_id = %(run)s AND s.step = w.step AND s.branch = 0 AND s.status = 'pending'
      AND s.waits_until IS NULL
)
SELECT round FROM whole
